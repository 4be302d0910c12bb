"""Choices of one request: those after the first wait for its prefill, then find its full pages in the index."""

from __future__ import annotations

from headrace_engine.core.sequence import Sequence


class Followers:
    """Sequences by the id of the one whose prefill they wait for."""

    def __init__(self) -> None:
        self._by_leader: dict[str, list[Sequence]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_leader)

    def all(self) -> list[Sequence]:
        """In no order that matters."""
        return [seq for followers in self._by_leader.values() for seq in followers]

    def add(self, seq: Sequence, leader: Sequence) -> None:
        """`seq` waits for `leader`, or for the one that this waits for itself."""
        seq.leader = leader.leader or leader.id
        self._by_leader.setdefault(seq.leader, []).append(seq)

    def remove(self, seq: Sequence) -> None:
        """It ended."""
        self._by_leader[seq.leader].remove(seq)
        seq.leader = ""

    def release(self, leader: Sequence) -> list[Sequence]:
        """Those that need not wait any more, now that `leader` has its first token or has ended.

        Where it ended before its first token, the first of them leads the others.
        """
        followers = self._by_leader.pop(leader.id, [])
        released = followers if leader.known > leader.prompt else followers[:1]
        for seq in released:
            seq.leader = ""
        rest = followers[len(released) :]
        if rest:
            self._by_leader[released[0].id] = rest
            for seq in rest:
                seq.leader = released[0].id
        return released
