"""Half an hour of random requests, cancels, stops, priorities, salts, deadlines and failures under a small pool.

    python benchmarks/engine/soak.py [--minutes 30] [--seed 1] [--model]

The core alone with a fake runner that checks every page, or with --model a random tiny one in torch. Three engines of
lag 0, 1 and 2 take turns, 2,000 requests at a time (with --model 200); after each turn every output was compared (the
tiny model's only by size), every gauge must be at zero, and what the process holds in memory is printed. Ends with 1 as
soon as something is wrong, or if memory grew by more than a tenth after the first turns.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import tempfile
import time
from pathlib import Path

from headrace_engine.core.budget import Pace
from headrace_engine.core.plan import Runner
from headrace_engine.core.state import Identity, Reporter
from headrace_engine.runner.driven import Deferred, Driven
from headrace_engine.runner.fake import VOCAB, generate
from headrace_engine.runner.soak import Soak, SoakFailure
from headrace_wire.protocol import ModelInfo

PAGES = 12
CONTEXT = 320
TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "dtype": "float32",
}


def tiny_runner(folder: Path) -> Runner:
    """A random model with a pool as small as the fake one's."""
    from headrace_engine.config import EngineConfig
    from headrace_engine.models.random import write_checkpoint
    from headrace_engine.runner.build import build

    write_checkpoint(folder, TINY)
    page_bytes = 2 * 2 * 32 * 64 * 4  # layers, K and V, head, tokens, float32
    config = EngineConfig(path=str(folder), served_name="tiny", threads=1, kv_cache_bytes=(PAGES + 1) * page_bytes)
    return build(config).runner


def engines(seed: int, runners: list[Runner | None]) -> list[Soak]:
    """One for each lag."""
    made = []
    for lag, runner in enumerate(runners):
        deferred = None if runner is None else Deferred(runner, lag)
        world = Driven(
            pages=PAGES, sequences=5, budget=96, context=CONTEXT, lag=lag, runner=deferred, pace=Pace() if lag else None
        )
        reporter = Reporter(Identity(ModelInfo(name="m"), world.runner.kv, "i"))
        made.append(Soak(random.Random(seed + lag), world, reporter, expect=generate if runner is None else None))
    return made


def resident_mib() -> float:
    """What the process holds in memory."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / (1 << 20)


def run(soaks: list[Soak], minutes: float, requests: int) -> int:
    """The exit code."""
    until = time.monotonic() + 60 * minutes
    first, turn = 0.0, 0
    while time.monotonic() < until:
        one = soaks[turn % len(soaks)]
        try:
            one.run(requests)
        except SoakFailure as failure:
            print(f"wrong after {one.sent} requests at lag {one.world.runner.lag}: {failure}")
            return 1
        turn += 1
        resident = resident_mib()
        if turn == 2 * len(soaks):
            first = resident
        print(f"turn {turn}: lag {one.world.runner.lag}, {one.sent} requests, {resident:.1f} MiB", flush=True)
    for one in soaks:
        preempted = one.world.scheduler.preemptions
        print(f"lag {one.world.runner.lag}: {one.sent} requests, {preempted} preemptions, ended {dict(one.ended)}")
    if not first:
        print("too short to tell whether memory grows")
        return 0
    grown = resident_mib() - first
    print(f"grown by {grown:.1f} MiB since turn {2 * len(soaks)}")
    return 1 if grown > 0.1 * first else 0


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", action="store_true")
    options = parser.parse_args()
    if not options.model:
        return run(engines(options.seed, [None] * 3), options.minutes, 2000)
    with tempfile.TemporaryDirectory() as folder:
        runners: list[Runner | None] = [tiny_runner(Path(folder)) for _ in range(3)]
        return run(engines(options.seed, runners), options.minutes, 200)


if __name__ == "__main__":
    sys.exit(main())
