"""vLLM's steps inside one process, for its own environment's interpreter; imports nothing of this repository.

python inside_vllm.py MODEL

Reads and answers as `inside.py` does. A step is `LLMEngine.step()`: scheduling, forward and sampling; no HTTP.
"""

from __future__ import annotations

import json
import os
import sys
import time
from statistics import mean, median
from typing import Any

ROWS = 32
CONTEXT, STEPS, WARM, REPEATS = 128, 48, 8, 5
Step = tuple[int, float, float]  # outputs, ms, CPU ms


class Inside:
    """An engine without its processes."""

    def __init__(self, model: str):
        import psutil  # type: ignore[import-untyped,import-not-found,unused-ignore]
        from vllm import EngineArgs, LLMEngine, SamplingParams  # type: ignore[import-not-found]

        self._params: Any = SamplingParams
        self.engine: Any = LLMEngine.from_engine_args(
            EngineArgs(
                model=model,
                dtype="bfloat16",
                max_model_len=2560,
                max_num_seqs=ROWS,
                enable_prefix_caching=False,
            )
        )
        self.drawn = 0
        self._workers: list[Any] = psutil.Process().children(recursive=True)

    def cpu_seconds(self) -> float:
        """CPU time of this process and of its workers, in which the model runs."""
        times = [worker.cpu_times() for worker in self._workers]
        return time.process_time() + sum(float(used.user + used.system) for used in times)

    def submit(self, prompt: int, output: int) -> None:
        """A request of new tokens."""
        self.drawn += 1
        tokens = [3 + (self.drawn * 7919 + j * 104_729) % 31_997 for j in range(prompt)]
        params = self._params(temperature=0.0, max_tokens=output, ignore_eos=True)
        self.engine.add_request(str(self.drawn), {"prompt_token_ids": tokens}, params)

    def step(self) -> Step:
        """Number of outputs, ms and CPU ms of one step."""
        cpu, began = self.cpu_seconds(), time.perf_counter()
        outputs = self.engine.step()
        ms = (time.perf_counter() - began) * 1000
        return len(outputs), ms, (self.cpu_seconds() - cpu) * 1000

    def all_steps(self) -> list[Step]:
        """Until nothing is left to do."""
        found = []
        while self.engine.has_unfinished_requests():
            found.append(self.step())
        return found


def row(what: str, found: list[Step]) -> tuple[str, float, float, float]:
    """A line of the table."""
    ms = [step[1] for step in found] or [0.0]
    return what, round(median(ms), 2), round(min(ms), 2), round(mean(step[2] for step in found) if found else 0.0, 2)


def decode(inside: Inside, rows: int) -> list[Step]:
    """Steps in which all rows decode: the last ones but one."""
    for _ in range(rows):
        inside.submit(CONTEXT, STEPS + WARM)
    return inside.all_steps()[-STEPS:-1]


def prefill(inside: Inside, tokens: int) -> list[Step]:
    """The step of one whole prompt."""
    found = []
    for _ in range(REPEATS):
        inside.submit(tokens, 1)
        found.append(inside.all_steps()[0])
    return found[1:]


def mixed(inside: Inside, rows: int, tokens: int) -> list[Step]:
    """The step in which a prompt arrives beside `rows` that decode."""
    for _ in range(rows):
        inside.submit(CONTEXT, 8 * REPEATS)
    for _ in range(WARM):
        inside.step()
    found = []
    for _ in range(REPEATS):
        inside.submit(tokens, 1)
        found.append(inside.step())
        inside.step()
    inside.all_steps()
    return found[1:]


def measure(inside: Inside, kind: str) -> tuple[str, float, float, float]:
    """Steps of one kind."""
    match kind.split():
        case ["decode", rows]:
            return row(kind, decode(inside, int(rows)))
        case ["prefill", tokens]:
            return row(kind, prefill(inside, int(tokens)))
        case ["decode", rows, "+", "prefill", tokens]:
            return row(kind, mixed(inside, int(rows), int(tokens)))
    raise ValueError(f"{kind!r} is no kind of step")


def main() -> None:
    """The command."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    out = os.dup(1)
    os.dup2(2, 1)  # what vLLM prints is no result
    inside = Inside(sys.argv[1])
    decode(inside, 4)
    for line in sys.stdin:
        os.write(out, json.dumps(measure(inside, line.strip())).encode() + b"\n")


if __name__ == "__main__":
    main()
