"""Milliseconds per decode step inside one process: scheduler, batch building, forward and sampling, no HTTP.

The processor's own time stands beside the wall's, for machines where others run too.

    python benchmarks/engine/step.py [--model FOLDER] [--dtype bfloat16] [--threads 1] [--batches 1,8] [--profile]

Without --model, a random model of the built-in one's shape.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import tempfile
import time
from array import array
from pathlib import Path
from statistics import mean, median

from headrace_engine.config import EngineConfig
from headrace_engine.core.blocks import BlockPool
from headrace_engine.core.scheduler import Limits, Scheduler
from headrace_wire.protocol import Sampling, Submit

DEMO_SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 1536,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
}


def measure(config: EngineConfig, batch: int, sampling: Sampling, steps: int) -> tuple[float, float, float]:
    """Median milliseconds of a decode step, of its part outside the runner, and mean CPU milliseconds of a step."""
    from headrace_engine.runner.build import build

    engine = build(config)
    limits = Limits(
        max_sequences=config.max_sequences,
        max_batch_tokens=config.max_batch_tokens,
        max_tokens=engine.model.max_tokens,
        vocab=engine.shape.vocab,
    )
    scheduler = Scheduler(limits, BlockPool(engine.runner.kv.pages), "00")
    for i in range(batch):
        tokens = array("i", [3 + (i * 131 + j * 17) % (engine.shape.vocab - 3) for j in range(128)])
        scheduler.submit(Submit(id=str(i), tokens=tokens.tobytes(), sampling=sampling, max_tokens=steps + 8), 0.0)
    total, outside, cpu = [], [], []
    while scheduler.busy:
        cpu_began = time.process_time()
        began = time.perf_counter()
        plan = scheduler.plan()
        if plan is None:
            raise RuntimeError("the scheduler has work and plans none")
        engine.runner.launch(plan)
        result = engine.runner.collect()
        scheduler.apply(result)
        ms = (time.perf_counter() - began) * 1000
        if len(plan.steps) == batch and all(step.count == 1 for step in plan.steps):
            total.append(ms)
            outside.append(ms - result.ms)
            cpu.append((time.process_time() - cpu_began) * 1000)
    return median(total), median(outside), mean(cpu)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = options.model
        if path is None:
            from headrace_engine.models.random import write_checkpoint

            path = folder
            write_checkpoint(Path(folder), DEMO_SHAPE)
        batches = [int(n) for n in options.batches.split(",")]
        print("| sampling | batch | ms/step | CPU ms | outside the runner | tok/s |\n|---|---|---|---|---|---|")
        profile = cProfile.Profile()
        for name, sampling in (("greedy", Sampling(temperature=0.0)), ("temperature 1", Sampling(seed=1))):
            for batch in batches:
                config = EngineConfig(
                    path=path,
                    served_name="bench",
                    dtype=options.dtype,
                    threads=options.threads,
                    max_sequences=max(batches),
                    max_batch_tokens=max(512, *batches),
                    kv_cache_bytes=1 << 30,
                )
                if options.profile:
                    profile.enable()
                ms, outside, cpu = measure(config, batch, sampling, options.steps)
                profile.disable()
                print(f"| {name} | {batch} | {ms:.2f} | {cpu:.2f} | {outside:.3f} | {1000 * batch / ms:.0f} |")
        if options.profile:
            pstats.Stats(profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
