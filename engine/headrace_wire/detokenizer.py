"""Exact incremental detokenizing.

Tokens are mapped to bytes, bytes are decoded as UTF-8 with the state kept, so a character split over tokens comes out
once it is whole and nothing that was given out ever changes. The pieces joined equal decoding all tokens at once.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

_UTF8 = codecs.getincrementaldecoder("utf-8")
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class DecoderUnsupported(ValueError):
    """The decoder in `tokenizer.json` is of a kind that cannot be run incrementally here; the message names it."""


def _byte_alphabet() -> dict[str, int]:
    """Byte-level BPE writes each byte as one printable character."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return alphabet


_ALPHABET = _byte_alphabet()
BYTE_ALPHABET = frozenset(_ALPHABET)
"""The characters that byte-level BPE writes for the 256 bytes."""


def _byte_level(token: str) -> bytes:
    values = [_ALPHABET.get(character) for character in token]
    known = [value for value in values if value is not None]
    return bytes(known) if len(known) == len(values) else token.encode()


def _steps(decoder: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if decoder.get("type") == "Sequence":
        return [step for part in decoder.get("decoders", []) for step in _steps(part)]
    return [decoder]


class TokenBytes:
    """Maps a token's string to its bytes as the `decoder` of a `tokenizer.json` does. Raises DecoderUnsupported.

    `strip` is the number of spaces that the decoder takes from the start of a text.
    """

    def __init__(self, decoder: Mapping[str, Any] | None):
        self.strip = 0
        self._replace: list[tuple[str, str]] = []
        self._fallback = False
        steps = _steps(decoder) if decoder else []
        self._byte_level = any(step.get("type") == "ByteLevel" for step in steps)
        if not steps:
            raise DecoderUnsupported("tokenizer.json: decoder: is missing")
        if not self._byte_level:
            for step in steps:
                self._take(step)

    def _take(self, step: Mapping[str, Any]) -> None:
        kind, pattern = step.get("type"), step.get("pattern")
        if kind == "Replace" and isinstance(pattern, dict) and isinstance(pattern.get("String"), str):
            self._replace.append((pattern["String"], str(step.get("content", ""))))
        elif kind == "ByteFallback":
            self._fallback = True
        elif kind == "Strip" and step.get("content") == " " and not step.get("stop"):
            self.strip = int(step.get("start", 0))
        elif kind == "Metaspace":
            self._replace.append((str(step.get("replacement", "▁")), " "))
            self.strip = 0 if step.get("prepend_scheme") == "never" else 1
        elif kind != "Fuse":
            raise DecoderUnsupported(f"tokenizer.json: decoder: {kind} is not supported")

    def __call__(self, token: str) -> bytes:
        if self._byte_level:
            return _byte_level(token)
        if self._fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match.group(1), 16)])
        for old, new in self._replace:
            token = token.replace(old, new)
        return token.encode()

    @classmethod
    def from_json(cls, tokenizer_json: str) -> TokenBytes:
        """From the text of a `tokenizer.json`."""
        return cls(json.loads(tokenizer_json).get("decoder"))


class Vocabulary:
    """Bytes of each token id, filled as ids are seen. `skipped` ids (special tokens) give nothing."""

    def __init__(self, token_bytes: TokenBytes, id_to_token: Callable[[int], str | None], skipped: Iterable[int]):
        self.strip = token_bytes.strip
        self._token_bytes = token_bytes
        self._id_to_token = id_to_token
        self._known: dict[int, bytes] = dict.fromkeys(skipped, b"")

    def bytes_of(self, token: int) -> bytes:
        """The bytes of one token; empty for special tokens and for ids beyond the vocabulary."""
        known = self._known.get(token)
        if known is None:
            text = self._id_to_token(token) if token >= 0 else None
            known = self._known[token] = b"" if text is None else self._token_bytes(text)
        return known


class Detokenizer:
    """Text of a growing list of tokens. `start` says that the text begins here, so the decoder's strip applies."""

    def __init__(self, vocabulary: Vocabulary, *, start: bool = True):
        self._vocabulary = vocabulary
        self._utf8 = _UTF8(errors="replace")
        self._strip = vocabulary.strip if start else 0

    def feed(self, tokens: Iterable[int]) -> str:
        """The text that these tokens complete; an incomplete character is kept for the next call."""
        return self._text(b"".join(map(self._vocabulary.bytes_of, tokens)), final=False)

    def finish(self) -> str:
        """What is left: an incomplete character becomes one U+FFFD."""
        return self._text(b"", final=True)

    def _text(self, data: bytes, *, final: bool) -> str:
        text = self._utf8.decode(data, final)
        while self._strip and text:
            if text[0] != " ":
                self._strip = 0
                break
            text, self._strip = text[1:], self._strip - 1
        return text
