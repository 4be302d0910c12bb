"""Who gets the last one: what several Models want, solved together within what there is. Pure.

Everything is counted in units, a unit being one replica more of one Model. Units are served in one order that depends
on nothing but the claims: first what each Model's minReplicas ask for, then what runs and is still wanted, then growth;
within each, the unit whose Model lacks the larger share of what it wants, times its weight. A unit that does not fit is
passed over, so nothing lies idle that a smaller replica could use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from headrace.scaling.types import ModelKey


@dataclass(frozen=True)
class Claim:
    """What one Model wants."""

    key: ModelKey
    least: int  # its minReplicas
    placed: int  # replicas that have room already
    wanted: int  # replicas, `least` included
    weight: int
    cost: Mapping[str, Decimal]  # of one replica, by the name of what is scarce


@dataclass(frozen=True)
class Grant:
    """What one Model may have; `lacking` names what ran out, where that is fewer than it wanted."""

    replicas: int
    lacking: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Unit:
    phase: int
    rank: Fraction  # the larger goes first
    claim: Claim
    number: int  # replicas of its Model before it

    @property
    def order(self) -> tuple[int, Fraction, ModelKey, int]:
        return self.phase, -self.rank, self.claim.key, self.number


def share(claims: Iterable[Claim], budget: Mapping[str, Decimal]) -> dict[ModelKey, Grant]:
    """By Model; what `budget` does not name is not scarce. The sum of what is granted stays within the budget."""
    left, given = dict(budget), dict[ModelKey, Grant]()
    units: list[_Unit] = []
    for claim in claims:
        given[claim.key] = Grant(0)
        units.extend(_units(claim))
    for unit in sorted(units, key=lambda u: u.order):
        claim, grant = unit.claim, given[unit.claim.key]
        if grant.lacking:
            continue
        lacking = tuple(sorted(name for name, each in claim.cost.items() if name in left and each > left[name]))
        given[claim.key] = Grant(grant.replicas if lacking else grant.replicas + 1, lacking)
        for name, each in {} if lacking else claim.cost.items():
            if name in left:
                left[name] -= each
    return given


def _units(claim: Claim) -> Iterator[_Unit]:
    wanted = max(claim.wanted, claim.least)
    for number in range(wanted):
        phase = 0 if number < claim.least else 1 if number < claim.placed else 2
        yield _Unit(phase, claim.weight * Fraction(wanted - number, wanted), claim, number)
