"""CPU time, memory and signals of a server: its process and all its descendants, read from /proc."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.engine.peers.records import Cpu

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")
SESSION = 3  # index among the fields after the name
BUSY = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")


def stat(path: Path) -> tuple[str, list[str]] | None:
    """Name and the fields after it (from `state`, which has index 0); None if it has ended."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError):
        return None
    name, _, rest = text[text.index("(") + 1 :].rpartition(")")
    return name, rest.split()


def tree(root: int) -> list[int]:
    """The process and its descendants, parents first."""
    parents: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (found := stat(entry / "stat")) is not None:
            parents.setdefault(int(found[1][1]), []).append(int(entry.name))
    order = [root]
    for pid in order:
        order.extend(sorted(parents.get(pid, [])))
    return order


def send(root: int, number: signal.Signals) -> None:
    """A signal to the process and its descendants; SIGSTOP and SIGCONT stop them all and let them go on."""
    for pid in tree(root):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _role(pid: int, name: str) -> str:
    """The name of a process; interpreters are told apart by how they were started."""
    if not name.startswith("python"):
        return name
    try:
        command = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        command = b""
    roles = {b"resource_tracker": "tracker", b"spawn_main": "spawned"}
    return next((f"{name} {role}" for word, role in roles.items() if word in command), name)


def _seconds(fields: list[str]) -> float:
    """User and system time."""
    return (int(fields[11]) + int(fields[12])) * TICK_S


def _reaped(fields: list[str]) -> float:
    """User and system time of children that have ended and were waited for."""
    return (int(fields[13]) + int(fields[14])) * TICK_S


@dataclass(frozen=True)
class Reading:
    """Counters at one moment, s."""

    processes: dict[tuple[int, str], float]
    threads: dict[tuple[int, str], float]
    reaped: float
    client: float
    machine: float  # all that was busy, with what other machines on the same host took

    @classmethod
    def take(cls, root: int) -> Reading:
        """Now."""
        processes: dict[tuple[int, str], float] = {}
        threads: dict[tuple[int, str], float] = {}
        reaped = 0.0
        for pid in tree(root):
            found = stat(PROC / str(pid) / "stat")
            if found is None:
                continue
            processes[pid, _role(pid, found[0])] = _seconds(found[1])
            reaped += _reaped(found[1])
            for task in (PROC / str(pid) / "task").iterdir():
                if (thread := stat(task / "stat")) is not None:
                    threads[int(task.name), thread[0]] = _seconds(thread[1])
        return cls(processes, threads, reaped, time.process_time(), machine_seconds())

    def since(self, before: Reading) -> Cpu:
        """What was used between two readings; processes of equal name are numbered from the second on."""
        used = {who: value - before.processes.get(who, 0.0) for who, value in self.processes.items()}
        server: dict[str, float] = {}
        seen: Counter[str] = Counter()
        for (_, name), seconds in sorted(used.items()):
            seen[name] += 1
            server[name if seen[name] == 1 else f"{name} {seen[name]}"] = round(seconds, 2)
        if (ended := self.reaped - before.reaped) > TICK_S:
            server["ended children"] = round(ended, 2)
        threads: dict[str, float] = {}
        for (number, name), value in self.threads.items():
            threads[name] = threads.get(name, 0.0) + value - before.threads.get((number, name), 0.0)
        client = self.client - before.client
        foreign = max(0.0, self.machine - before.machine - sum(server.values()) - client)
        busiest = sorted(threads.items(), key=lambda item: -item[1])[:8]
        named = {name: round(s, 2) for name, s in busiest if s > TICK_S}
        return Cpu(server, named, round(client, 3), round(foreign, 2))


def machine_seconds() -> float:
    """CPU seconds of the machine that were not idle."""
    values = dict(zip(BUSY, (int(n) for n in (PROC / "stat").read_text().split("\n", 1)[0].split()[1:]), strict=False))
    return sum(value for name, value in values.items() if name not in ("idle", "iowait")) * TICK_S


def memory(root: int) -> tuple[int, int]:
    """Bytes: proportional resident size, and the sum of each process's peak, over the tree."""
    resident = peak = 0
    for pid in tree(root):
        try:
            rollup = (PROC / str(pid) / "smaps_rollup").read_text()
            status = (PROC / str(pid) / "status").read_text()
        except OSError:
            continue
        resident += _kilobytes(rollup, "Pss:") << 10
        peak += _kilobytes(status, "VmHWM:") << 10
    return resident, peak


def _kilobytes(text: str, name: str) -> int:
    """The number in the line that begins with `name`; 0 if there is none."""
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith(name)), 0)
