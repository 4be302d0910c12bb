"""Milliseconds of a step inside one process: scheduler, batch building, forward and sampling, no HTTP.

    PYTHONPATH=engine python benchmarks/engine/step.py                     # 107M parameters, bfloat16, all CPUs
    PYTHONPATH=engine python benchmarks/engine/step.py --shape demo --threads 1 --sampled
    PYTHONPATH=engine python benchmarks/engine/step.py --pieces            # and what the time goes to

Steps: `decode n` (n rows that decode), `prompt n` (one prompt of n tokens), `mixed n+m` (n - 1 rows beside a prompt of
m tokens). Columns: least and median wall time; the processor's own time, median, for machines where others run too; the
part outside the runner (scheduler, results); the matrix products of the same step alone, which no step can undercut.
Without --model, a random model is written to a temporary folder.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from headrace_engine.config import EngineConfig
from headrace_engine.core import threads
from headrace_engine.core.blocks import BlockPool
from headrace_engine.core.plan import StepPlan, StepResult
from headrace_engine.core.scheduler import Limits, Scheduler
from headrace_wire.protocol import Sampling, Submit

SHAPES: dict[str, dict[str, Any]] = {
    "107m": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 32000,
        "hidden_size": 768,
        "intermediate_size": 2304,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
    },
    "demo": {
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
    },
}
OPERATIONS = {
    "products": ("mkldnn::_linear_pointwise", "aten::addmm", "aten::mm"),
    "attention": ("aten::_scaled_dot_product_flash_attention_for_cpu", "aten::index_select", "aten::index_copy_"),
}
GREEDY = Sampling(temperature=0.0)


Kind = tuple[str, int, int, Callable[[int], "Times"]]  # name, tokens, sampled rows, measurement by steps


@dataclass
class Times:
    """Of the steps of one kind, in milliseconds."""

    wall: list[float] = field(default_factory=list)
    outside: list[float] = field(default_factory=list)  # the runner
    cpu: list[float] = field(default_factory=list)


class Bench:
    """One engine; each measurement has a scheduler and prompts of its own."""

    def __init__(self, config: EngineConfig, context: int, sampling: Sampling):
        """`context`: tokens of the prompts of rows that decode."""
        from headrace_engine.runner.build import build

        before, began = resident(), time.perf_counter()
        self.engine = build(config)
        weights = self.engine.memory["weights_bytes"] >> 20
        seconds, more = time.perf_counter() - began, resident() - before
        print(f"loaded in {seconds:.1f} s: weights of {weights} MiB, resident memory grew by {more} MiB\n")
        self._config = config
        self._context = context
        self._sampling = sampling
        self._prompts = 0
        self.profiled: Profiled | None = None

    def decode(self, rows: int, steps: int) -> Times:
        """Steps in which exactly these rows decode."""
        scheduler = self._scheduler()
        for _ in range(rows):
            self._submit(scheduler, self._context, steps + 8)
        return self._drive(scheduler, lambda plan: len(plan.steps) == rows == _tokens(plan))

    def prompt(self, tokens: int, beside: int, repeats: int) -> Times:
        """Steps that compute one whole prompt, beside rows that decode."""
        scheduler = self._scheduler()
        for _ in range(beside):
            self._submit(scheduler, self._context, 3 * repeats + 8)
        found = Times()
        for _ in range(repeats):
            while beside and any(seq.want != 1 for seq in [*scheduler.running, *scheduler.queued()]):
                self._step(scheduler)
            self._submit(scheduler, tokens, 1)
            times = self._step(scheduler, lambda plan: _tokens(plan) == tokens + beside)
            for name, values in vars(times).items():
                getattr(found, name).extend(values)
        self._drive(scheduler, lambda plan: False)
        return found

    def _scheduler(self) -> Scheduler:
        limits = Limits(
            max_sequences=self._config.max_sequences,
            max_batch_tokens=self._config.max_batch_tokens,
            max_tokens=self.engine.model.max_tokens,
            vocab=self.engine.shape.vocab,
        )
        return Scheduler(limits, BlockPool(self.engine.runner.kv.pages), "00")

    def _submit(self, scheduler: Scheduler, tokens: int, answer: int) -> None:
        """A prompt like no other."""
        self._prompts += 1
        ids = array("i", [3 + (self._prompts * 131 + j * 17) % (self.engine.shape.vocab - 3) for j in range(tokens)])
        name = str(self._prompts)
        scheduler.submit(Submit(id=name, tokens=ids.tobytes(), sampling=self._sampling, max_tokens=answer), 0.0)

    def _drive(self, scheduler: Scheduler, counts: Callable[[StepPlan], bool]) -> Times:
        found = Times()
        while scheduler.busy:
            times = self._step(scheduler, counts)
            for name, values in vars(times).items():
                getattr(found, name).extend(values)
        return found

    def _step(self, scheduler: Scheduler, counts: Callable[[StepPlan], bool] = lambda plan: False) -> Times:
        """One step; timed if it counts."""
        cpu_began = time.process_time()
        began = time.perf_counter()
        plan = scheduler.plan()
        if plan is None:
            raise RuntimeError("the scheduler has work and plans none")
        counted = counts(plan)
        self.engine.runner.launch(plan)
        collect = self.engine.runner.collect
        result = self.profiled(collect) if counted and self.profiled is not None else collect()
        scheduler.apply(result)
        ms = (time.perf_counter() - began) * 1000
        if not counted:
            return Times()
        return Times([ms], [ms - result.ms], [(time.process_time() - cpu_began) * 1000])


def resident() -> int:
    """Resident memory of this process, MiB."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) >> 10


def _tokens(plan: StepPlan) -> int:
    return sum(step.count for step in plan.steps)


class Products:
    """The matrix products of a step, with packed weights of the model's shape and nothing else."""

    def __init__(self, config: dict[str, Any], dtype: str):
        import torch

        hidden, inner = config["hidden_size"], config["intermediate_size"]
        heads, dim = config["num_attention_heads"], config.get("head_dim") or hidden // config["num_attention_heads"]
        kv_heads = config.get("num_key_value_heads") or heads
        sizes = [((heads + 2 * kv_heads) * dim, hidden), (hidden, heads * dim), (2 * inner, hidden), (hidden, inner)]
        self._dtype = getattr(torch, dtype)
        self._head = self._packed(config["vocab_size"], hidden)
        self._layers = [self._packed(out, size) for _ in range(config["num_hidden_layers"]) for out, size in sizes]

    def _packed(self, out: int, size: int) -> tuple[int, Callable[[Any], Any]]:
        import torch

        weight = torch.randn(out, size).to(self._dtype)
        if self._dtype is torch.float32:
            columns = weight.t().contiguous().t()
            return size, lambda x: torch.nn.functional.linear(x, columns)
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, 16)
        return size, lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")

    def run(self, tokens: int, sampled: int, repeats: int) -> Times:
        """The products of some steps."""
        import torch

        inputs = {size: torch.randn(tokens, size).to(self._dtype) for size, _ in [*self._layers, self._head]}
        found = Times()
        with torch.inference_mode():
            for _ in range(repeats):
                cpu_began, began = time.process_time(), time.perf_counter()
                for size, product in self._layers:
                    product(inputs[size])
                self._head[1](inputs[self._head[0]][:sampled])
                found.wall.append((time.perf_counter() - began) * 1000)
                found.cpu.append((time.process_time() - cpu_began) * 1000)
        return found


class Profiled:
    """Runs steps under torch's profiler and sums the operations' own times by kind."""

    def __init__(self) -> None:
        self.spent = dict.fromkeys([*OPERATIONS, "other operations", "between operations"], 0.0)  # ms
        self.steps = 0

    def __call__(self, step: Callable[[], StepResult]) -> StepResult:
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CPU]) as found:
            began = time.perf_counter()
            result = step()
            left = (time.perf_counter() - began) * 1000
        for event in found.key_averages():
            kind = next((kind for kind, names in OPERATIONS.items() if event.key in names), "other operations")
            self.spent[kind] += event.self_cpu_time_total / 1000
            left -= event.self_cpu_time_total / 1000
        self.spent["between operations"] += max(0.0, left)
        self.steps += 1
        return result


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a model folder; default: a random model of --shape")
    parser.add_argument("--shape", choices=SHAPES, default="107m", help="default: 107m, shaped like Qwen3")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--threads", type=int, default=0, help="0, the default: one per CPU allowed")
    parser.add_argument("--batches", default="1,8,16,32", help="rows of decode steps; default: 1,8,16,32")
    parser.add_argument("--prompts", default="128,512", help="tokens of prompts, alone and mixed; default: 128,512")
    parser.add_argument("--context", type=int, default=128, help="prompt tokens of rows that decode; default: 128")
    parser.add_argument(
        "--steps", type=int, default=60, help="decode steps measured, a quarter of prompts; default: 60"
    )
    parser.add_argument("--sampled", action="store_true", help="temperature 1, top-p 0.95 instead of greedy")
    parser.add_argument("--pieces", action="store_true", help="what each kind of step spends its time on")
    parser.add_argument("--no-products", action="store_true", help="leave out the products alone")
    return parser.parse_args()


def run(options: argparse.Namespace, path: str, config: dict[str, Any]) -> None:
    """Measure and print."""
    batches = [int(n) for n in options.batches.split(",") if n]
    prompts = [int(n) for n in options.prompts.split(",") if n]
    engine = EngineConfig(
        path=path,
        served_name="bench",
        dtype=options.dtype,
        threads=options.threads,
        max_sequences=max(batches, default=1),
        max_batch_tokens=max([512, *batches, *(n + max(batches, default=1) for n in prompts)]),
        kv_cache_bytes=1 << 30,
    )
    bench = Bench(engine, options.context, Sampling(seed=1, top_p=0.95) if options.sampled else GREEDY)
    kinds: list[Kind] = [(f"decode {n}", n, n, lambda steps, n=n: bench.decode(n, steps)) for n in batches]
    for n in prompts:
        kinds.append((f"prompt {n}", n, 1, lambda steps, n=n: bench.prompt(n, 0, max(4, steps // 4))))
    for n in (n for n in batches if n > 1 and prompts):
        name, tokens = f"mixed {n}+{prompts[0]}", n - 1 + prompts[0]
        kinds.append((name, tokens, n, lambda steps, n=n: bench.prompt(prompts[0], n - 1, max(4, steps // 4))))
    products = None if options.no_products else Products(config, options.dtype)
    print("| step | ms, least | ms, median | CPU ms | outside the runner | products alone: ms, least | CPU ms |")
    print("|---|---|---|---|---|---|---|")
    for name, tokens, sampled, measure in kinds:
        times = measure(options.steps)
        floor = " | "
        if products is not None:
            alone = products.run(tokens, sampled, max(5, options.steps // 4))
            floor = f"{min(alone.wall):.1f} | {median(alone.cpu):.1f}"
        figures = f"{min(times.wall):.1f} | {median(times.wall):.1f} | {median(times.cpu):.1f}"
        print(f"| {name} | {figures} | {median(times.outside):.2f} | {floor} |", flush=True)
    if options.pieces:
        pieces(bench, kinds, max(8, options.steps // 8))


def pieces(bench: Bench, kinds: list[Kind], steps: int) -> None:
    """What each kind of step spends its time on; the profiler slows what is not a product down."""
    names = list(Profiled().spent)
    print(f"\n| step, ms | {' | '.join(names)} |\n|---|{'---|' * len(names)}")
    for name, _, _, measure in kinds:
        bench.profiled = profiled = Profiled()
        measure(steps)
        print(f"| {name} | " + " | ".join(f"{ms / profiled.steps:.2f}" for ms in profiled.spent.values()) + " |")
    bench.profiled = None


def main() -> None:
    """Print tables."""
    import os

    options = arguments()
    os.environ.setdefault("KINETO_LOG_LEVEL", "9")  # of the profiler
    policy = threads.set_policy(os.environ, threads.count(options.threads), threads.allowed_cpus())
    print(f"{threads.count(options.threads)} thread(s) of {threads.allowed_cpus()} CPU(s), waiting: {policy}\n")
    with tempfile.TemporaryDirectory() as folder:
        path, config = options.model or folder, SHAPES[options.shape]
        if options.model is None:
            from headrace_engine.models.random import write_checkpoint

            write_checkpoint(Path(folder), config)
        else:
            import json

            config = json.loads((Path(path) / "config.json").read_text())
        run(options, path, config)


if __name__ == "__main__":
    main()
