"""Logprobs of a choice: one entry for each token whose text is given out, whatever cuts or holds it back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.testing.examples import examples
from headrace.testing.tiny_tokenizer import tiny_bundle
from headrace_engine.api.answer import RunningChoice
from headrace_engine.api.logprobs import Held, Shapes
from headrace_engine.api.sse import Response
from headrace_engine.api.text import ChoiceText
from headrace_wire.chat import ChatTokenizer
from headrace_wire.protocol import Delta, Finish, TokenLogprob

TINY = ChatTokenizer(tiny_bundle())
STOP_ID = 2


def delta(tokens: list[int], finish: Finish | None = None) -> Delta:
    entries = [TokenLogprob(-token / 100.0, [(token, -token / 100.0), (1, -9.0)]) for token in tokens]
    return Delta(id="r", tokens=tokens, logprobs=entries, finish=finish)


def run(text: str, stops: tuple[str, ...], *, by_id: bool = False, group: int = 1, least: int = 0) -> RunningChoice:
    """A choice that was given this text in groups of tokens; `kept` in pieces, too."""
    choice = RunningChoice(ChoiceText(TINY.detokenizer(), stops, least), frozenset({STOP_ID}), Held())
    ids = TINY.encode_text(text) + ([STOP_ID] if by_id else [])
    for first in range(0, len(ids), group):
        if choice.finish is None:
            last = first + group >= len(ids)
            finish = (Finish.STOP if by_id else Finish.LENGTH) if last else None
            choice.keep(choice.take(delta(ids[first : first + group], finish)))
    return choice


def entries(choice: RunningChoice) -> list[int]:
    assert choice.whole.entries is not None
    return [entry.token for entry in choice.whole.entries]


@pytest.mark.parametrize("group", [1, 2, 50])
@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [
        pytest.param("hello", (), "hello", id="all"),
        pytest.param("say END now", ("END",), "say ", id="cut"),
        pytest.param("say EN", ("END",), "say EN", id="held-back-is-flushed"),
        pytest.param("END", ("END",), "", id="nothing-left"),
    ],
)
def test_entries_are_those_of_the_text(text: str, stops: tuple[str, ...], expected: str, group: int) -> None:
    choice = run(text, stops, group=group)
    assert choice.whole.text == expected
    assert TINY.decode(entries(choice)) == expected
    assert entries(choice) == TINY.encode_text(expected)


def test_a_stop_id_has_no_entry() -> None:
    choice = run("abc", (), by_id=True)
    assert STOP_ID not in entries(choice)
    assert choice.text.tokens == len(TINY.encode_text("abc")) + 1


def test_a_core_that_reports_none_is_no_silent_loss() -> None:
    choice = RunningChoice(ChoiceText(TINY.detokenizer()), frozenset(), Held())
    with pytest.raises(ValueError, match="zip"):
        choice.take(Delta(id="r", tokens=[5]))


def test_stop_strings_wait_for_the_least_output() -> None:
    assert run("END and END", ("END",), least=4).whole.text == "END and "


@given(st.text("abE ND🎉é", max_size=20), st.sampled_from([(), ("END",), ("🎉",), ("ab", "b ")]), st.integers(1, 4))
@settings(max_examples=examples(200), deadline=None)
def test_entries_never_run_ahead_of_the_text(text: str, stops: tuple[str, ...], group: int) -> None:
    choice = RunningChoice(ChoiceText(TINY.detokenizer(), stops), frozenset(), Held())
    ids = TINY.encode_text(text)
    for first in range(0, len(ids), group):
        if choice.finish is None:
            end = Finish.LENGTH if first + group >= len(ids) else None
            choice.keep(choice.take(delta(ids[first : first + group], end)))
        assert choice.whole.entries is not None
        assert all(entry.start <= len(choice.whole.text) for entry in choice.whole.entries)
    shown = entries(choice) if ids else []
    assert shown == ids[: len(shown)]
    if not choice.text.stopped:
        assert shown == ids


class TestShapes:
    def test_a_token_of_half_a_character_is_shown_by_its_bytes(self) -> None:
        ids = TINY.encode_text("é")
        choice = run("é", ())
        chat = Shapes(TINY.token_bytes, chat=True).of(choice.whole.entries)
        plain = Shapes(TINY.token_bytes, chat=False).of(choice.whole.entries)
        assert chat is not None
        assert plain is not None
        assert bytes(byte for row in chat["content"] for byte in row["bytes"]) == "é".encode()
        assert len(plain["tokens"]) == len(ids)
        if len(ids) > 1:
            assert plain["tokens"][0] == "bytes:\\xc3"

    def test_minus_infinity_has_a_number(self) -> None:
        choice = RunningChoice(ChoiceText(TINY.detokenizer()), frozenset(), Held())
        taken = choice.take(Delta(id="r", tokens=[5], logprobs=[TokenLogprob(float("-inf"), [])], finish=Finish.LENGTH))
        shape = Shapes(TINY.token_bytes, chat=False).of(taken.entries)
        assert shape is not None
        assert shape["token_logprobs"] == [-9999.0]

    def test_nothing_asked_is_null(self) -> None:
        assert Shapes(TINY.token_bytes, chat=True).of(None) is None

    @pytest.mark.parametrize("chat", [True, False], ids=["chat", "completion"])
    def test_chunks_carry_them(self, chat: bool) -> None:
        response = Response("r", "m", 1, chat=chat, token_text=TINY.token_bytes)
        choice = RunningChoice(ChoiceText(TINY.detokenizer()), frozenset(), Held())
        taken = choice.take(delta(TINY.encode_text("ab")))
        event: dict[str, Any] = json.loads(response.text(0, taken.text, taken.entries).removeprefix(b"data: "))
        row = event["choices"][0]
        assert row["finish_reason"] is None
        assert row["logprobs"]["content" if chat else "tokens"]
