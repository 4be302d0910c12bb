"""From the tokens that sequences were given in a step to its plan, and what is remembered until it comes back."""

from __future__ import annotations

from headrace_engine.core.plan import NewRow, RowStep, StepPlan
from headrace_engine.core.sequence import Sequence

# A row of a step in flight: its sequence (which may hold another row, or none, when the step comes back), the row,
# tokens computed after the step, and whether one is drawn. A bare tuple: a step makes one for each row.
Launched = tuple[Sequence, int, int, bool]


def launch(number: int, draft: dict[Sequence, int], drop: list[int]) -> tuple[StepPlan, list[Launched]]:
    """The plan of step `number`; the tokens of `draft` count as computed from now on."""
    new: list[NewRow] = []
    steps: list[RowStep] = []
    launched: list[Launched] = []
    given = list(draft.items())
    if max(draft.values()) > 1:
        given.sort(key=_is_chunk)  # stable: rows with one token come first
    for seq, count in given:
        start, row = seq.computed, seq.row
        end = start + count
        sample = end == seq.known + seq.pending
        if seq.told == seq.room:
            steps.append(RowStep(row=row, start=start, count=count, sample=sample))
        else:
            added = _tell(seq, new)
            steps.append(RowStep(row=row, start=start, count=count, sample=sample, pages=added))
        seq.computed = end
        if sample:
            seq.pending += 1
        launched.append((seq, row, end, sample))
    return StepPlan(number=number, new=new, steps=steps, drop=drop), launched


def _tell(seq: Sequence, new: list[NewRow]) -> list[int]:
    """Pages to be appended to the row's block table; a row that the runner does not know goes to `new`, with all."""
    known = seq.told > 0
    added = seq.untold()
    seq.told = seq.room
    if known:
        return added
    new.append(
        NewRow(
            row=seq.row,
            tokens=seq.tokens.tobytes(),
            prompt=seq.prompt,
            pages=added,
            sampling=seq.sampling,
            stop_ids=sorted(seq.stop_ids) if seq.sampling.min_tokens else [],
        )
    )
    return []


def _is_chunk(given: tuple[Sequence, int]) -> bool:
    return given[1] > 1
