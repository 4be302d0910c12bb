"""Prompts of an exact number of tokens: random words, each one token, the same for every server in the same round."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

from benchmarks.engine.make_model import SPECIAL
from tokenizers import Tokenizer

LONGEST = 12  # letters of a word
SHORTEST = 3


class Prompts:
    """Draws user messages; a seed that differs gives other words from the first one on."""

    def __init__(self, folder: Path):
        """`folder`: of the model."""
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        vocab = self._tokenizer.get_vocab()
        words = [token[1:] for token in vocab if token.startswith("Ġ") and token[1:].isascii()]
        self._words = sorted(w for w in words if w.isalpha() and w.islower() and SHORTEST <= len(w) <= LONGEST)

    def words(self, seed: str, count: int) -> str:
        """`count` words with a space before each: `count` tokens within a sentence."""
        number = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8])
        return "".join(f" {word}" for word in random.Random(number).choices(self._words, k=count))

    def tokens(self, message: str) -> int:
        """Tokens of the whole prompt with this one user message, as the chat template writes it."""
        _, begin, end = SPECIAL
        text = f"{begin}user\n{message}{end}\n{begin}assistant\n"
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def message(self, seed: str, tokens: int, prefix: str = "") -> str:
        """A message that makes a prompt of `tokens` tokens and begins with `prefix`. Raises ValueError if it cannot."""
        bare = self.tokens(prefix)
        message = prefix + self.words(seed, tokens - bare)
        if self.tokens(message) != tokens:
            raise ValueError(f"a prompt of {tokens} tokens came out as {self.tokens(message)}")
        return message
