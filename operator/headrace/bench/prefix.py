"""A replica's prefix cache: blocks of a trace by id, the least recently used go first."""

from __future__ import annotations

from collections import OrderedDict

from headrace.bench.trace import BLOCK_TOKENS, Ints


class PrefixCache:
    """Blocks lie in the KV pool's room that running requests leave."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def lookup(self, blocks: Ints, prompt: int) -> int:
        """Tokens of the prompt that are cached: whole leading blocks; at least one token is left to prefill."""
        hit = 0
        for block in blocks.tolist():
            if block not in self._blocks:
                break
            self._blocks.move_to_end(block)
            hit += 1
        return min(hit * BLOCK_TOKENS, prompt - 1)

    def insert(self, blocks: Ints, prompt: int) -> None:
        """Remember the whole blocks of a prefilled prompt."""
        for block in blocks.tolist()[: prompt // BLOCK_TOKENS]:
            self._blocks[block] = None
            self._blocks.move_to_end(block)

    def shrink(self, room_tokens: float) -> None:
        """Keep what fits."""
        most = max(0, int(room_tokens // BLOCK_TOKENS))
        while len(self._blocks) > most:
            self._blocks.popitem(last=False)
