"""What a text's bytes tell of its tokens: a bound from below that holds for every tokenizer that has one."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from headrace.testing.examples import examples
from headrace.testing.tiny_tokenizer import tiny_bundle
from headrace_engine.fetch.fetch import DEMO
from headrace_wire.bounds import NFC_SHRINKS
from headrace_wire.chat import ChatTokenizer, make_bundle
from headrace_wire.reasons import Reason, RequestError

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
MERGES = [("a", "a"), ("aa", "aa"), ("aaaa", "aaaa"), ("Ġ", "Ġ"), ("ĠĠ", "ĠĠ"), ("Ã", "©")]
TEXTS = st.text() | st.text(alphabet="aé  \n\t가\u1100\u1161\u11a8K\u0327e\u0301<|end|>▁", max_size=400)


def _made(tokenizer: Any) -> ChatTokenizer:
    return ChatTokenizer(make_bundle(tokenizer.to_str(), None))


def _by_bytes(merges: list[tuple[str, str]] = MERGES, *, dropped: str = "", **added: bool) -> Any:
    vocabulary = {letter: index for index, letter in enumerate(letter for letter in ALPHABET if letter != dropped)}
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    made: Any = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    if merges:
        made.add_special_tokens([AddedToken("<|end|>", **added)])
    return made


def _in_pieces(*, fallback: bool = True) -> Any:
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "▁a", "▁▁", "▁▁▁▁"]
    merges = [("▁", "a"), ("▁", "▁"), ("▁▁", "▁▁")]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    model = models.BPE(vocab=vocabulary, merges=merges, byte_fallback=fallback, unk_token="<unk>", fuse_unk=True)
    made: Any = Tokenizer(model)
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence(steps)
    return made


def _with(merges: list[tuple[str, str]] = MERGES, **parts: Any) -> Any:
    made = _by_bytes(merges)
    for name, part in parts.items():
        setattr(made, name, part)
    return made


def _split(behavior: str) -> Any:
    splits = pre_tokenizers.Split(Regex(r"\s+"), behavior)
    return pre_tokenizers.Sequence([splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


BOUNDED: dict[str, Callable[[], ChatTokenizer]] = {
    "the demo model's": lambda: ChatTokenizer.from_folder(DEMO),
    "a byte a token": lambda: ChatTokenizer(tiny_bundle()),
    "bytes with merges": lambda: _made(_by_bytes()),
    "composed characters": lambda: _made(_with([], normalizer=normalizers.NFC())),
    "split at blanks": lambda: _made(_with(pre_tokenizer=_split("isolated"))),
    "pieces with byte fallback": lambda: _made(_in_pieces()),
}
MAY_LOSE = {
    "takes the blanks after a token": _by_bytes(rstrip=True),
    "takes the blanks before a token": _by_bytes(lstrip=True),
    "drops a byte that it does not know": _by_bytes(dropped="z"),
    "drops blanks": _with(pre_tokenizer=_split("removed")),
    "strips": _with(normalizer=normalizers.Strip()),
    "shortens by a pattern": _with(normalizer=normalizers.Replace(Regex(" +"), " ")),
    "shortens by a word": _with(normalizer=normalizers.Replace("aa", "a")),
    "joins what it does not know": _in_pieces(fallback=False),
}


@pytest.mark.parametrize("make", BOUNDED.values(), ids=BOUNDED)
def test_a_text_never_has_fewer_tokens_than_its_bytes_tell(make: Callable[[], ChatTokenizer]) -> None:
    tokenizer = make()

    @settings(max_examples=examples(300), deadline=None)
    @given(TEXTS, st.integers(1, 30))
    def check(text: str, times: int) -> None:
        long = text * times
        count = len(tokenizer.encode_text(long, special=False))
        tokenizer.check_bytes(long, count + 1, "prompt")  # raises nothing: it fits exactly

    check()


@pytest.mark.parametrize("make", BOUNDED.values(), ids=BOUNDED)
@pytest.mark.parametrize("letter", ["a", "é", " ", "가"])
def test_what_cannot_fit_is_refused_by_its_bytes_alone(make: Callable[[], ChatTokenizer], letter: str) -> None:
    tokenizer, text = make(), letter * 1_000_000
    tokenizer._tokenizer = None  # nothing could be counted
    with pytest.raises(RequestError) as caught:
        tokenizer.check_bytes(text, 256, "prompt")
    assert (caught.value.reason, caught.value.param) == (Reason.CONTEXT_EXCEEDED, "prompt")
    assert f"{len(text.encode())} bytes" in caught.value.message and "256 tokens" in caught.value.message


@pytest.mark.parametrize("made", MAY_LOSE.values(), ids=MAY_LOSE)
def test_nothing_is_claimed_of_a_tokenizer_that_may_lose_text(made: Any) -> None:
    tokenizer = _made(made)
    assert tokenizer._least is None
    tokenizer.check_bytes(" " * 1_000_000, 2, "prompt")


def test_composing_shortens_no_text_more_than_is_reckoned_with() -> None:
    """Each character that composing can leave, from the longest texts that it may have been."""
    longest: dict[str, int] = {}  # bytes of the longest character that decomposes to this
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        if not 0xD800 <= code <= 0xDFFF:
            parts = unicodedata.normalize("NFD", character)
            size = len(character.encode())
            longest[parts] = max(longest.get(parts, 0), size)
    worst = 0.0
    for parts in longest:
        apart = sum(max(longest.get(part, 0), len(part.encode())) for part in parts)
        left = len(unicodedata.normalize("NFC", parts).encode())
        worst = max(worst, max(apart, longest[parts]) / left)
    assert 1 < worst <= NFC_SHRINKS


def test_a_chat_is_bounded_as_its_template_writes_it() -> None:
    tokenizer = ChatTokenizer(tiny_bundle())
    messages = [{"role": "user", "content": "a" * 100}]
    count = len(tokenizer.encode_chat(messages))
    assert len(tokenizer.encode_chat(messages, room=count + 1)) == count
    with pytest.raises(RequestError) as caught:
        tokenizer.encode_chat([{"role": "user", "content": "a" * 10_000}], room=200)
    assert (caught.value.reason, caught.value.param) == (Reason.CONTEXT_EXCEEDED, "messages")
