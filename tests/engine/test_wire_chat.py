"""Tokenizing and detokenizing: equal to the reference tokenizer, exact in pieces."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from headrace.testing.examples import examples
from headrace.testing.tiny_tokenizer import VOCABULARY, tiny_bundle
from headrace_engine.fetch.fetch import DEMO
from headrace_wire.chat import ChatTokenizer, TokenizerInvalid, make_bundle, read_bundle
from headrace_wire.reasons import Reason, RequestError

TINY = ChatTokenizer(tiny_bundle())
TINY_REFERENCE: Any = Tokenizer.from_str(tiny_bundle().tokenizer_json)


def _pieces_tokenizer() -> tuple[ChatTokenizer, Any]:
    """A tokenizer in the manner of Llama 2: pieces with ▁, bytes as <0x41>, the first space stripped."""
    vocabulary = {"<unk>": 0, **{f"<0x{byte:02X}>": byte + 1 for byte in range(256)}, "▁": 257, "a": 258, "▁a": 259}
    reference: Any = Tokenizer(models.BPE(vocab=vocabulary, merges=[("▁", "a")], byte_fallback=True, unk_token="<unk>"))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    reference.decoder = decoders.Sequence(steps)
    return ChatTokenizer(make_bundle(reference.to_str(), None)), reference


PIECES, PIECES_REFERENCE = _pieces_tokenizer()


def _in_pieces(tokenizer: ChatTokenizer, groups: list[list[int]]) -> list[str]:
    detokenizer = tokenizer.detokenizer()
    return [*(detokenizer.feed(group) for group in groups), detokenizer.finish()]


@given(st.lists(st.lists(st.integers(0, VOCABULARY + 3), max_size=4), max_size=12))
@settings(max_examples=examples(500), deadline=None)
def test_any_tokens_decode_as_the_reference_does(groups: list[list[int]]) -> None:
    tokens = [token for group in groups for token in group]
    reference = TINY_REFERENCE.decode([t for t in tokens if t < VOCABULARY], skip_special_tokens=True)
    assert "".join(_in_pieces(TINY, groups)) == reference == TINY.decode(tokens)


@given(st.text(max_size=30), st.integers(0, 40))
@settings(max_examples=examples(300), deadline=None)
def test_text_comes_back_and_never_changes(text: str, cut: int) -> None:
    tokens = TINY.encode_text(text)[:cut]
    pieces = _in_pieces(TINY, [[token] for token in tokens])
    whole = b"".join(bytes([byte]) for byte in text.encode()[: len(tokens)]).decode(errors="replace")
    assert "".join(pieces) == whole
    assert "\ufffd" not in "".join(pieces[:-1]).replace("\ufffd", "", text.count("\ufffd"))


def test_an_incomplete_tail_is_one_replacement_character() -> None:
    tokens = TINY.encode_text("é🎉")[:-1]
    assert _in_pieces(TINY, [[token] for token in tokens]) == ["", "é", "", "", "", "\ufffd"]


PIECE_CASES: dict[str, list[int]] = {
    "first-space-is-stripped": [259, 259],
    "emoji-of-bytes": [259, 0xF0 + 1, 0x9F + 1, 0x8E + 1, 0x89 + 1, 258],
    "only-a-space": [257],
    "two-spaces": [257, 259],
    "nothing": [],
}


@pytest.mark.parametrize("tokens", PIECE_CASES.values(), ids=PIECE_CASES)
def test_byte_fallback_decodes_as_the_reference_does(tokens: list[int]) -> None:
    expected = PIECES_REFERENCE.decode(tokens, skip_special_tokens=False)
    assert PIECES.decode(tokens) == "".join(_in_pieces(PIECES, [[token] for token in tokens])) == expected


def test_special_tokens_give_no_text_but_count() -> None:
    tokens = TINY.encode_chat([{"role": "user", "content": "hi"}])
    assert tokens[0] == 256
    assert TINY.decode(tokens) == "user\nhi\nassistant\n"


def _reference_chats() -> dict[str, list[dict[str, Any]]]:
    return {
        "one": [{"role": "user", "content": "What is TTFT?"}],
        "system": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        "turns": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello."},
            {"role": "user", "content": "é🎉日本"},
        ],
        "markup": [{"role": "user", "content": "{{ 7 * 7 }} {% raw %} <|im_end|>"}],
    }


REFERENCE_CHATS = _reference_chats()


@pytest.mark.parametrize("messages", REFERENCE_CHATS.values(), ids=REFERENCE_CHATS)
def test_chats_equal_transformers(messages: list[dict[str, Any]]) -> None:
    transformers = pytest.importorskip("transformers")
    reference = transformers.AutoTokenizer.from_pretrained(DEMO)
    expected = reference.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    tokenizer = ChatTokenizer.from_folder(DEMO)
    assert tokenizer.render_chat(messages) == expected
    assert tokenizer.encode_chat(messages) == reference.encode(expected, add_special_tokens=False)


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert TINY.encode_chat([{"role": "user", "content": parts}]) == TINY.encode_chat(
        [{"role": "user", "content": "ab"}]
    )


REFUSED: dict[str, Any] = {
    "image-part": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
    "content-number": [{"role": "user", "content": 5}],
    "lone-surrogate": [{"role": "user", "content": "\ud800"}],
}


@pytest.mark.parametrize("messages", REFUSED.values(), ids=REFUSED)
def test_bad_messages_are_the_caller_s_fault(messages: Any) -> None:
    with pytest.raises(RequestError) as caught:
        TINY.encode_chat(messages)
    assert (caught.value.reason, caught.value.param) == (Reason.INVALID_REQUEST, "messages")


@pytest.mark.parametrize("eos", ["x", [3, "x"], True, 1.5], ids=["text", "text-in-a-list", "bool", "fraction"])
def test_ends_that_are_no_tokens_are_refused(tmp_path: Path, eos: object) -> None:
    (tmp_path / "tokenizer.json").write_text((DEMO / "tokenizer.json").read_text())
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    with pytest.raises(TokenizerInvalid, match="eos_token_id must be a token id or a list of them") as refused:
        read_bundle(tmp_path)
    assert refused.value.file == "generation_config.json"


def test_no_template_is_said() -> None:
    with pytest.raises(RequestError, match="no chat template"):
        PIECES.encode_chat([{"role": "user", "content": "x"}])


def test_digest_depends_on_every_field() -> None:
    base: dict[str, Any] = {"bos_token": "a", "eos_token": "b", "eos_ids": (1,)}
    variants = [
        make_bundle("t", "c", **base),
        make_bundle("u", "c", **base),
        make_bundle("t", None, **base),
        make_bundle("t", "", **base),
        make_bundle("t", "c", **{**base, "bos_token": "b", "eos_token": "a"}),
        make_bundle("t", "c", **{**base, "eos_ids": (1, 2)}),
    ]
    assert len({bundle.digest for bundle in variants}) == len(variants)
    assert make_bundle("t", "c", **base).digest == variants[0].digest


def test_the_demo_folder() -> None:
    tokenizer = ChatTokenizer.from_folder(DEMO)
    assert tokenizer.eos_ids == (2,)
    assert ChatTokenizer.from_bundle(tokenizer.bundle).digest == tokenizer.digest


BROKEN: dict[str, tuple[str, str | None]] = {
    "not-json": ("{", None),
    "no-model": ("{}", None),
    "unknown-decoder": (
        TINY_REFERENCE.to_str().replace('"decoder":{"type":"ByteLevel"', '"decoder":{"type":"CTC"'),
        None,
    ),
    "template": (TINY_REFERENCE.to_str(), "{% for %}"),
}


@pytest.mark.parametrize(("tokenizer_json", "template"), BROKEN.values(), ids=BROKEN)
def test_a_broken_bundle_is_refused(tokenizer_json: str, template: str | None) -> None:
    with pytest.raises(TokenizerInvalid):
        ChatTokenizer(make_bundle(tokenizer_json, template))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerInvalid, match=r"tokenizer\.json"):
        ChatTokenizer.from_folder(tmp_path)


def test_encoding_leaves_other_threads_alone() -> None:
    """A long text is encoded while this thread goes on: the interpreter lock is released."""
    tokenizer = ChatTokenizer.from_folder(DEMO)
    text = "What does the scheduler do with a long prompt? " * 6000
    done = threading.Event()
    thread = threading.Thread(target=lambda: (tokenizer.encode_text(text), done.set()))
    thread.start()
    turns = 0
    while not done.is_set():
        time.sleep(0.001)
        turns += 1
    thread.join()
    assert turns > 5
