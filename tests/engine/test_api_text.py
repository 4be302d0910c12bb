"""Text of a choice: stop strings, held-back text, the way in which tokens arrive does not matter."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.testing.examples import examples
from headrace.testing.tiny_tokenizer import tiny_bundle
from headrace_engine.api.text import ChoiceText
from headrace_wire.chat import ChatTokenizer

TINY = ChatTokenizer(tiny_bundle())


def run(groups: list[list[int]], stops: tuple[str, ...]) -> tuple[list[str], ChoiceText]:
    text = ChoiceText(TINY.detokenizer(), stops)
    pieces = [text.feed(group) for group in groups]
    return [*pieces, text.finish()], text


def tokens(text: str) -> list[list[int]]:
    return [[token] for token in TINY.encode_text(text)]


CASES: dict[str, tuple[str, tuple[str, ...], str, bool]] = {
    "no-stops": ("hello", (), "hello", False),
    "split-over-tokens": ("say END now", ("END",), "say ", True),
    "at-the-beginning": ("END", ("END",), "", True),
    "the-earlier-wins": ("a b c", ("c", "b"), "a ", True),
    "prefix-that-is-none": ("ENEND", ("END",), "EN", True),
    "overlapping-itself": ("aaab", ("aab",), "a", True),
    "held-back-is-flushed": ("say EN", ("END",), "say EN", False),
    "one-stop-inside-another": ("xabcd", ("abcd", "bc"), "xa", True),
    "emoji": ("a🎉b", ("🎉",), "a", True),
}


@pytest.mark.parametrize(("text", "stops", "expected", "stopped"), CASES.values(), ids=CASES)
def test_cases(text: str, stops: tuple[str, ...], expected: str, stopped: bool) -> None:
    pieces, choice = run(tokens(text), stops)
    assert "".join(pieces) == expected
    assert choice.stopped is stopped


def test_only_what_may_become_a_stop_is_held_back() -> None:
    pieces, _ = run(tokens("xEyEN"), ("END",))
    assert pieces == ["x", "", "Ey", "", "", "EN"]


letters = st.text("abE🎉", max_size=14)


@given(letters, st.lists(st.text("abE🎉", min_size=1, max_size=4), max_size=3), st.integers(1, 5), st.integers(0, 3))
@settings(max_examples=examples(600), deadline=None)
def test_pieces_are_prefixes_and_groups_do_not_matter(text: str, stops: list[str], group: int, cut: int) -> None:
    ids = TINY.encode_text(text)
    ids = ids[: max(0, len(ids) - cut)]
    one_by_one, single = run([[token] for token in ids], tuple(stops))
    grouped, other = run([ids[at : at + group] for at in range(0, len(ids), group)], tuple(stops))
    whole = "".join(one_by_one)
    assert "".join(grouped) == whole
    assert (single.tokens, single.stopped) == (other.tokens, other.stopped)
    assert not any(stop in whole for stop in stops)
    full = TINY.decode(ids)
    assert full.startswith(whole)
    assert single.stopped or whole == full
