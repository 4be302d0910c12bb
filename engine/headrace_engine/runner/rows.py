"""The runner's copy of the running batch, and a step's tensors made from it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headrace_engine.attention.base import AttentionMeta
from headrace_engine.core.plan import NewRow, RowStep
from headrace_wire.protocol import PAGE_TOKENS, Sampling

Ints = npt.NDArray[np.int32]


class Row:
    """A sequence in the batch: its tokens and its block table, both growing."""

    __slots__ = ("_page_buffer", "_token_buffer", "length", "page_count", "prompt", "sampling", "stop_ids")

    def __init__(self, new: NewRow):
        known = np.frombuffer(new.tokens, dtype="<i4")
        self._token_buffer: Ints = np.empty(len(known) + PAGE_TOKENS, np.int32)
        self._token_buffer[: len(known)] = known
        self._page_buffer: Ints = np.array(new.pages, np.int32)
        self.length = len(known)  # known tokens
        self.page_count = len(new.pages)
        self.prompt = new.prompt
        self.sampling: Sampling = new.sampling
        self.stop_ids = new.stop_ids

    @property
    def tokens(self) -> Ints:
        """Known tokens."""
        return self._token_buffer[: self.length]

    @property
    def pages(self) -> Ints:
        """The block table."""
        return self._page_buffer[: self.page_count]

    def scored(self, step: RowStep) -> int:
        """Leading tokens of a step whose logits are those of a prompt token that is reported on."""
        if self.sampling.prompt_logprobs is None:
            return 0
        return max(0, min(step.count, self.prompt - 1 - step.start))

    def append_token(self, token: int) -> None:
        """A sampled token."""
        if self.length == len(self._token_buffer):
            self._token_buffer = np.concatenate((self._token_buffer, np.empty_like(self._token_buffer)))
        self._token_buffer[self.length] = token
        self.length += 1

    def append_pages(self, pages: list[int]) -> None:
        """The block table grows."""
        self._page_buffer = np.concatenate((self.pages, np.array(pages, np.int32)))
        self.page_count += len(pages)


@dataclass(frozen=True)
class Batch:
    """A step's input."""

    tokens: Tensor  # int64 [tokens]
    positions: Tensor  # int64 [tokens]
    meta: AttentionMeta


def build(steps: list[RowStep], rows: dict[int, Row]) -> Batch:
    """Tensors of a step; `steps` has rows with one token first."""
    held = [rows[step.row] for step in steps]
    starts = np.array([step.start for step in steps], np.int64)
    if steps[-1].count == 1:
        query_start, positions, contexts = np.arange(len(steps) + 1, dtype=np.int32), starts, starts + 1
        row_of, singles, longest = query_start[:-1], len(steps), 1
    else:
        counts = np.array([step.count for step in steps], np.int64)
        query_start = np.concatenate((np.zeros(1, np.int32), np.cumsum(counts, dtype=np.int32)))
        # Position of token t of row r: start of r + t - first token of r.
        positions = np.arange(query_start[-1]) + np.repeat(starts - query_start[:-1], counts)
        contexts, row_of = starts + counts, np.repeat(np.arange(len(steps)), counts)
        singles, longest = int((counts == 1).sum()), int(counts.max())
    table = _table(held, contexts)
    page, offset = np.divmod(positions, PAGE_TOKENS)
    meta = AttentionMeta(
        decode_rows=singles,
        query_start=torch.from_numpy(query_start),
        context_len=torch.from_numpy(contexts.astype(np.int32)),
        prompt_len=torch.from_numpy(np.array([row.prompt for row in held], np.int32)),
        logit_rows=torch.from_numpy(_logit_rows(steps, held, query_start)),
        pages=[torch.from_numpy(table)],
        slots=[torch.from_numpy(table[row_of, page] * np.int64(PAGE_TOKENS) + offset)],
        max_query=longest,
        max_context=int(contexts.max()),
    )
    return Batch(torch.from_numpy(_tokens(steps, held, singles)), torch.from_numpy(positions), meta)


def _logit_rows(steps: list[RowStep], held: list[Row], query_start: Ints) -> npt.NDArray[np.int64]:
    """Tokens of the step whose logits are wanted, ascending: of each row the scored ones, then the sampled one."""
    if all(row.sampling.prompt_logprobs is None for row in held):
        return (query_start[1:][[step.sample for step in steps]] - 1).astype(np.int64)
    wanted: list[int] = []
    for step, row, first, end in zip(steps, held, query_start[:-1].tolist(), query_start[1:].tolist(), strict=True):
        wanted += range(first, first + row.scored(step))
        if step.sample:
            wanted.append(end - 1)
    return np.array(wanted, np.int64)


def _tokens(steps: list[RowStep], held: list[Row], singles: int) -> npt.NDArray[np.int64]:
    """The new tokens; those of the `singles` rows that decode come first."""
    ones = np.array(
        [row.tokens[step.start] for step, row in zip(steps[:singles], held[:singles], strict=True)], np.int64
    )
    if singles == len(steps):
        return ones
    rest = zip(steps[singles:], held[singles:], strict=True)
    return np.concatenate((ones, *(row.tokens[step.start : step.start + step.count] for step, row in rest)))


def _table(held: list[Row], contexts: npt.NDArray[np.int64]) -> Ints:
    """Block tables of the rows as far as the step's context goes, filled with the dummy page."""
    used = -(-contexts // PAGE_TOKENS)
    most = int(used.max())
    pages = [row.pages[:count] for row, count in zip(held, used.tolist(), strict=True)]
    if len(pages) == 1:
        return pages[0][None].copy()
    table = np.zeros((len(held), most), np.int32)
    table[np.arange(most) < used[:, None]] = np.concatenate(pages)
    return table
