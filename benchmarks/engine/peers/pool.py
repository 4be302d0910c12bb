"""Headrace with less and less KV: the same load, from a pool that holds everything down to constant preemption."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from benchmarks.engine.make_model import CONFIG
from benchmarks.engine.peers import cells
from benchmarks.engine.peers.client import closed_loop
from benchmarks.engine.peers.prompts import Prompts
from benchmarks.engine.peers.records import Pool, Spread
from benchmarks.engine.peers.servers import HEADRACE, NAME, SERVERS, Running, Setup, get, headrace_command, running

PAGE_TOKENS = 64
CONCURRENCY, REQUESTS, OUTPUT = 16, 24, 128
CONTEXT = 384  # tokens: the smallest pool that may be asked for holds one such sequence
REPEATS = 1
PAGES = (96, 64, 48, 32, 20, 10)
DEMAND = CONCURRENCY * -(-(cells.PROMPT_TOKENS + OUTPUT) // PAGE_TOKENS)
PAGE_BYTES = (
    PAGE_TOKENS * 2 * 2 * CONFIG["num_hidden_layers"] * CONFIG["num_key_value_heads"] * CONFIG["head_dim"]
)  # keys and values, bf16


@dataclass(frozen=True)
class Size:
    """One size of the pool."""

    setup: Setup
    pages: int
    logs: Path

    def measure(self, prompts: Prompts, repeats: range) -> list[Pool]:
        """Start an engine with this pool and run the load. Raises ServerError, CellError."""
        size = ("--max-model-len", str(CONTEXT), "--kv-cache-bytes", str(self.pages * PAGE_BYTES))
        command = headrace_command(self.setup, 0, *size)
        command[command.index("--port") + 1] = "PORT"
        log = self.logs / f"pool-{self.pages}.log"
        with running(SERVERS[HEADRACE], self.setup, log, command) as server:
            bench = cells.Bench(HEADRACE, self.pages, server, prompts)
            cells.warm_up(bench, CONCURRENCY)
            return [self._once(bench, repeat) for repeat in repeats]

    def _once(self, bench: cells.Bench, repeat: int) -> Pool:
        bodies = bench.bodies(f"pool/{repeat}", REQUESTS, output=OUTPUT)
        before = preemptions(bench.server)
        samples, seconds = cells.run(closed_loop(bench.server.target, bodies, CONCURRENCY))
        good = [sample for sample in samples if not sample.error]
        return Pool(
            pages=self.pages,
            repeat=repeat,
            demand_pages=DEMAND,
            errors=cells.errors_of(samples),
            seconds=round(seconds, 3),
            output_tokens=sum(sample.output_tokens for sample in good),
            preemptions=preemptions(bench.server) - before,
            ttft_ms=Spread.of([sample.ttft for sample in good]),
            itl_ms=Spread.of([gap for sample in good for gap in sample.gaps]),
            digests=[sample.whole_digest for sample in samples],
        )


def preemptions(server: Running) -> int:
    """As the engine counts them. Raises CellError if it does not say."""
    _, body = get(server.port, "/metrics")
    found = re.search(r"^headrace_engine_preemptions_total (\S+)$", body.decode(), re.MULTILINE)
    if found is None:
        raise cells.CellError(f"{NAME}: /metrics does not count preemptions")
    return int(float(found.group(1)))
