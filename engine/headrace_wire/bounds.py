"""How few tokens a text can have, told from its bytes alone: what cannot fit need not be counted. Pure.

A bound holds only where no step of the tokenizer removes text. So it is made from a `tokenizer.json` whose every step
is known to keep it: normalizers and splits of an allow-list, no added token that takes the blanks beside it, and BPE
over an alphabet that has every byte, which knows no unknown text. Of other tokenizers nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headrace_wire.detokenizer import BYTE_ALPHABET

Node = Mapping[str, Any]

NFC_SHRINKS = 4  # times at most, in bytes of UTF-8: a Kelvin sign becomes a K, nine bytes of Hangul three
_KEEP = frozenset(("ByteLevel", "Digits", "Metaspace"))
_KEEP_UNLESS_REMOVED = frozenset(("Split", "Punctuation"))
_BYTE_TOKENS = frozenset(f"<0x{byte:02X}>" for byte in range(256))


@dataclass(frozen=True)
class LeastTokens:
    """A bound from below on the tokens of a text."""

    longest: int  # bytes of normalized text that one token stands for at most
    shrinks: int = 1  # times that normalizing shortens a text which is not ASCII at most

    def __call__(self, text: str, size: int) -> int:
        """Tokens of a text of `size` bytes at least."""
        covers = self.longest if text.isascii() else self.longest * self.shrinks
        return -(-size // covers)


def least_tokens(document: Node, normalize: Callable[[str], str]) -> LeastTokens | None:
    """The bound of a `tokenizer.json`; None: nothing can be told. `normalize` is its own normalizer."""
    model, added = document.get("model") or {}, document.get("added_tokens") or []
    steps = list(_steps(document.get("pre_tokenizer"), "pretokenizers"))
    if not (all(map(_keeps, steps)) and not any(token.get("lstrip") or token.get("rstrip") for token in added)):
        return None
    shrinks = _shrinks(document.get("normalizer"))
    by_bytes = any(step.get("type") == "ByteLevel" for step in steps)
    if shrinks is None or not _knows_all(model, by_bytes=by_bytes):
        return None
    sizes = [len(token) if by_bytes else len(token.encode()) for token in model["vocab"]]
    for token in added:
        content = str(token.get("content", ""))
        sizes += [len(content.encode()), len(normalize(content).encode())]
    return LeastTokens(max(sizes, default=1) or 1, shrinks)


def _steps(node: Node | None, parts: str) -> Iterator[Node]:
    if node is None:
        return
    if node.get("type") == "Sequence":
        for part in node.get(parts) or []:
            yield from _steps(part, parts)
    else:
        yield node


def _keeps(step: Node) -> bool:
    """This splitting step loses nothing of a text."""
    kind = step.get("type")
    return kind in _KEEP or (kind in _KEEP_UNLESS_REMOVED and step.get("behavior") != "Removed")


def _shrinks(normalizer: Node | None) -> int | None:
    """How many times the normalizer shortens a text at most; None: it may lose some."""
    times = 1
    for step in _steps(normalizer, "normalizers"):
        kind = step.get("type")
        if kind == "NFC":
            times *= NFC_SHRINKS
        elif not (kind == "Prepend" or (kind == "Replace" and _lengthens(step))):
            return None
    return times


def _lengthens(step: Node) -> bool:
    pattern = step.get("pattern")
    old = pattern.get("String") if isinstance(pattern, Mapping) else None
    return isinstance(old, str) and len(str(step.get("content", "")).encode()) >= len(old.encode())


def _knows_all(model: Node, *, by_bytes: bool) -> bool:
    """BPE in which every byte has a token, so that no text is unknown, dropped or joined into one unknown token."""
    vocabulary = model.get("vocab")
    if model.get("type", "BPE") != "BPE" or "merges" not in model or not isinstance(vocabulary, Mapping):
        return False
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return False
    if by_bytes:
        return vocabulary.keys() >= BYTE_ALPHABET
    return bool(model.get("byte_fallback")) and vocabulary.keys() >= _BYTE_TOKENS
