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
    counts = np.array([step.count for step in steps], np.int32)
    starts = np.array([step.start for step in steps], np.int32)
    query_start = np.zeros(len(steps) + 1, np.int32)
    np.cumsum(counts, out=query_start[1:])
    total = int(query_start[-1])
    # Position of token t of row r: start of r + t - first token of r.
    positions = np.arange(total, dtype=np.int64) + np.repeat(starts - query_start[:-1], counts)
    contexts = starts + counts
    table = _table(held, contexts)
    row_of = np.repeat(np.arange(len(steps)), counts)
    slots = table[row_of, positions // PAGE_TOKENS].astype(np.int64) * PAGE_TOKENS + positions % PAGE_TOKENS
    meta = AttentionMeta(
        decode_rows=int((counts == 1).sum()),
        query_start=torch.from_numpy(query_start),
        context_len=torch.from_numpy(contexts),
        prompt_len=torch.tensor([row.prompt for row in held], dtype=torch.int32),
        logit_rows=torch.from_numpy(_logit_rows(steps, held, query_start)),
        pages=[torch.from_numpy(table)],
        slots=[torch.from_numpy(slots)],
        max_query=int(counts.max()),
        max_context=int(contexts.max()),
    )
    return Batch(torch.from_numpy(_tokens(steps, held)), torch.from_numpy(positions), meta)


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


def _tokens(steps: list[RowStep], held: list[Row]) -> npt.NDArray[np.int64]:
    """The new tokens; the single ones of rows that decode come first."""
    singles = [row.tokens[step.start] for step, row in zip(steps, held, strict=True) if step.count == 1]
    rest = zip(steps[len(singles) :], held[len(singles) :], strict=True)
    chunks = [row.tokens[step.start : step.start + step.count] for step, row in rest]
    return np.concatenate((np.array(singles, np.int64), *chunks))


def _table(held: list[Row], contexts: Ints) -> Ints:
    """Block tables of the rows as far as the step's context goes, filled with the dummy page."""
    used = (contexts + PAGE_TOKENS - 1) // PAGE_TOKENS
    columns = np.arange(int(used.max()))
    table = np.zeros((len(held), len(columns)), np.int32)
    table[columns < used[:, None]] = np.concatenate(
        [row.pages[:count] for row, count in zip(held, used.tolist(), strict=True)]
    )
    return table
