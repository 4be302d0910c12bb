"""One run: all servers in turn, each record kept as soon as it is there."""

from __future__ import annotations

import json
import subprocess
import time
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean

from benchmarks.engine.peers import cells, plan, pool, sampling, turns
from benchmarks.engine.peers.plan import Block, Settings
from benchmarks.engine.peers.processes import Reading, machine_seconds, memory
from benchmarks.engine.peers.progress import minutes, say
from benchmarks.engine.peers.prompts import Prompts
from benchmarks.engine.peers.records import Load, Pool, Profile, Start, Store
from benchmarks.engine.peers.servers import HEADRACE, ROOT, SERVERS, ServerError, Setup, clean_environment, running

SAMPLED = sampling.WHAT["dso"]
LEAK_CHARACTERS = 24  # of a prompt's beginning
SETTLE_S = 30.0  # longest wait for other programs before a server is started
SETTLED_CORES = 0.25


@dataclass(frozen=True)
class Life:
    """A server that has been started."""

    bench: cells.Bench
    first_token_s: float  # from the start of its process


@dataclass
class Campaign:
    """The measurements of `settings` that are missing in `store`."""

    settings: Settings
    parts: tuple[str, ...]  # of plan.PARTS
    setup: Setup
    store: Store
    logs: Path
    prompts: Prompts
    failed: dict[str, str] = field(default_factory=dict)  # server: why it is left out
    sampled: set[str] = field(default_factory=set)  # servers whose CPU time was sampled, or cannot be
    deadline: float = float("inf")  # time.monotonic after which no cell is begun

    def run(self) -> None:
        """Everything that is missing."""
        if "profile" in self.parts and not sampling.available():
            say("perf is not here or may not sample: servers are not profiled, Headrace's steps are")
            self.sampled.update(self.settings.servers)
        for block in plan.blocks(self.settings):
            if not self._late() and self._wanted(block):
                say(f"about {minutes(self.left())} to go")
                self._block(block)
        for name, part in (("steps", self._steps), ("profile", self._profile), ("pool", self._pool)):
            if name in self.parts and not self._late():
                part()
        if self._late() and self.left():
            say(f"stopped for lack of time; the same command goes on, for about {minutes(self.left())}")

    def _late(self) -> bool:
        return time.monotonic() > self.deadline

    def left(self) -> float:
        """Seconds that are still to be measured, about."""
        known = self._measured()
        total = 0.0
        for block in plan.blocks(self.settings):
            for name, missing in self._wanted(block).items():
                loops = [(c, cells.requests_of(c) * cells.OUTPUT_TOKENS) for part, _, c in missing if part == "load"]
                total += plan.life_seconds(name, loops, [part for part, _, _ in missing], known)
        parts, store = self.parts, self.store
        total += plan.STEPS_S * len(self._rounds_of_steps())
        total += plan.PROFILE_S * ("profile" in parts and not store.has("profile", HEADRACE, "decode 16"))
        sizes = sum(not self._pool_done(pages) for pages in pool.PAGES) / len(pool.PAGES)
        return total + plan.POOL_S * sizes * ("pool" in parts)

    def _wanted(self, block: Block) -> dict[str, list[tuple[str, int, int]]]:
        """The servers of a block that have not been measured to the end, with what is missing of each."""
        found = {name: self._missing(name, block) for name in block.servers if name not in self.failed}
        return {name: missing for name, missing in found.items() if missing}

    def _missing(self, name: str, block: Block) -> list[tuple[str, int, int]]:
        """Cells of a server's life: part, round, concurrency."""
        parts, number = self.parts, str(block.number)
        missing = [
            ("load", round_, c)
            for round_ in (block.rounds if "load" in parts else ())
            for c in self.settings.concurrency
            if not self.store.has("load", name, str(round_), str(c))
        ]
        if name not in self.sampled and "profile" in parts and not self.store.has("profile", name, SAMPLED):
            missing.append(("profile", 0, 0))
        missing += [
            (part, 0, 0) for part in ("gap", "prefix") if part in parts and not self.store.has(part, name, number)
        ]
        return missing

    def _measured(self) -> dict[tuple[str, int], float]:
        found = defaultdict(list)
        for record in self.store.all():
            if isinstance(record, Load):
                found[record.server, record.concurrency].append(record.seconds)
        return {key: mean(seconds) for key, seconds in found.items()}

    def _block(self, block: Block) -> None:
        """One life of all servers: one is awake at a time, so that a machine whose speed drifts is as fast for all."""
        with ExitStack() as stack:
            lives: dict[str, Life] = {}
            for name in self._wanted(block):
                try:
                    lives[name] = self._begun(name, block, stack)
                except (ServerError, cells.CellError) as error:
                    self._leave_out(name, error)
            for round_ in block.rounds:
                for at, concurrency in enumerate(self.settings.concurrency):
                    for name in plan.turned(list(lives), round_ + at) if lives else ():
                        if ("load", round_, concurrency) in self._missing(name, block) and not self._late():
                            with lives[name].bench.server.awake():
                                self._load(lives[name].bench, round_, concurrency)
            for name, life in lives.items():
                try:
                    self._ended(name, block, life)
                except cells.CellError as error:
                    self._leave_out(name, error)

    def _leave_out(self, name: str, error: Exception) -> None:
        self.failed[name] = str(error)
        say(f"{name} is left out from here on: {error}")

    def _begun(self, name: str, block: Block, stack: ExitStack) -> Life:
        """Started, warm and asleep. Raises ServerError, CellError."""
        settle()
        server = SERVERS[name]
        log = self.logs / f"{name}-{block.number}.log"
        say(f"starting {name} ({server.version}), start {block.number + 1} of {self.settings.starts}")
        with ExitStack() as own:  # it ends here if it does not answer
            alive = own.enter_context(running(server, self.setup, log))
            bench = cells.Bench(name, block.number, alive, self.prompts)
            first = cells.first_token(bench)
            say(f"{name} was healthy after {alive.healthy_s:.1f} s, answered after {first:.1f} s")
            cells.warm_up(bench, max(self.settings.concurrency))
            alive.sleep()
            stack.push(own.pop_all())
        return Life(bench, first)

    def _ended(self, name: str, block: Block, life: Life) -> None:
        """What is measured once in each life, and its record. Raises CellError."""
        alive = life.bench.server
        resident, peak = memory(alive.pid)
        processes = len(Reading.take(alive.pid).processes)
        with alive.awake():
            for part, _, _ in self._missing(name, block):
                if not self._late():
                    self._extra(part, life.bench)
        start = Start(
            server=name,
            block=block.number,
            healthy_s=round(alive.healthy_s, 2),
            first_token_s=round(life.first_token_s, 2),
            resident_bytes=resident,
            peak_bytes=peak,
            processes=processes,
            leaks=self._leaks(block, alive.log),
        )
        self.store.add(start)

    def _load(self, bench: cells.Bench, round_: int, concurrency: int) -> None:
        found = cells.load(bench, round_, concurrency)
        self.store.add(found)
        wrong = f", errors: {', '.join(sorted(set(found.errors)))}" if found.errors else ""
        say(
            f"{bench.name} round {round_ + 1} of {self.settings.rounds}, c={concurrency}: "
            f"{found.tokens_per_s:.0f} tok/s, TTFT {found.ttft_ms.p50:.0f} ms, ITL {found.itl_ms.p50:.1f} ms{wrong}"
        )

    def _extra(self, part: str, bench: cells.Bench) -> None:
        """What is measured once in each life, or once."""
        if part == "gap":
            found = cells.gap(bench)
            self.store.add(found)
            say(f"{bench.name}: largest gap {found.largest_ms:.0f} ms, median {found.itl_ms:.1f} ms")
        elif part == "prefix":
            self.store.add(cells.prefix(bench))
        elif part == "profile":
            self.sampled.add(bench.name)
            for profile in sampling.sample(bench, self.logs):
                self.store.add(profile)

    def _leaks(self, block: Block, log: Path) -> int:
        """Prompts of this block whose beginning stands in the server's log."""
        text = log.read_text(errors="replace")
        seeds = [
            f"load/{round_}/{c}/{i}"
            for round_ in block.rounds
            for c in self.settings.concurrency
            for i in range(cells.requests_of(c))
        ]
        return sum(self.prompts.words(seed, 8)[:LEAK_CHARACTERS] in text for seed in seeds)

    def _inside(self) -> list[str]:
        """Servers whose steps can be measured in process."""
        return [name for name in turns.INSIDE if name in self.settings.servers and name not in self.failed]

    def _rounds_of_steps(self) -> list[int]:
        """Those that are missing."""
        names, wanted = self._inside(), range(self.settings.rounds if "steps" in self.parts else 0)
        return [number for number in wanted if not all(self.store.has("steps", name, str(number)) for name in names)]

    def _steps(self) -> None:
        missing = self._rounds_of_steps()
        if not missing:
            return
        try:
            with turns.engines(self.setup, self._inside(), self.logs) as engines:
                for number in missing:
                    if self._late():
                        return
                    for record in turns.measure(engines, number):
                        self.store.add(record)
        except turns.Ended as error:
            say(f"{error}; see {self.logs}")

    def _profile(self) -> None:
        if HEADRACE not in self.settings.servers or self.store.has("profile", HEADRACE, "decode 16"):
            return
        say("profiling Headrace's steps")
        env = clean_environment(SERVERS[HEADRACE].environment(self.setup))
        command = [*turns.command(self.setup, HEADRACE), "--profile"]
        with (self.logs / f"inside-{HEADRACE}.log").open("ab") as log:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, cwd=ROOT, env=env, check=False)
        if done.returncode:
            say(f"Headrace's steps could not be profiled (exit {done.returncode}); see {self.logs}")
            return
        for what, rows in json.loads(done.stdout).items():
            self.store.add(Profile(server=HEADRACE, what=what, rows=[(str(k), float(v)) for k, v in rows]))

    def _pool_done(self, pages: int) -> bool:
        return all(self.store.has("pool", str(pages), str(repeat)) for repeat in range(pool.REPEATS))

    def _pool(self) -> None:
        if HEADRACE not in self.settings.servers or HEADRACE in self.failed:
            return
        for pages in pool.PAGES:
            if self._pool_done(pages) or self._late():
                continue
            try:
                found = pool.Size(self.setup, pages, self.logs).measure(self.prompts, range(pool.REPEATS))
            except (ServerError, cells.CellError) as error:
                say(f"a pool of {pages} pages: {error}")
                continue
            for record in found:
                self.store.add(record)
            say(f"a pool of {pages} pages: " + ", ".join(_pool_line(record) for record in found))


def _pool_line(record: Pool) -> str:
    return f"{record.output_tokens / record.seconds:.0f} tok/s with {record.preemptions} preemptions"


def settle() -> None:
    """Wait until other programs leave the CPUs alone, for SETTLE_S at most."""
    deadline = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline:
        before = machine_seconds()
        time.sleep(0.5)
        if machine_seconds() - before < SETTLED_CORES * 0.5:
            return
    say("other programs use the CPUs; the figures will show it (foreign CPU)")
