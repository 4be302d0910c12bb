"""The real side: an engine that records its steps, the calibration's load, and the replay of the trace."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
from benchmarks.engine.peers import servers
from benchmarks.engine.peers.client import Sample, Target, send
from benchmarks.engine.replay import workload
from benchmarks.engine.replay.compare import Seen
from tokenizers import Tokenizer

from headrace.bench import calibrate
from headrace.bench.calibrate import Step
from headrace.bench.profile import Profile
from headrace.bench.trace import Trace

CONCURRENCIES = (1, 2, 4, 8, 12, 16)  # of the calibration's load
ALONE = (32, 96, 192, 384, 768, 1200)  # prompt tokens of requests that have the engine for themselves
ALONE_TIMES = 4  # each of them
PROBE_WORDS = 64


class ReplayError(Exception):
    """Requests failed."""


@dataclass(frozen=True)
class Engine:
    """How the engine is started."""

    model: Path
    threads: int = 1
    sequences: int = 16
    batch_tokens: int = 512
    context: int = 2048
    kv_bytes: int = 1 << 30

    def command(self, steps: Path) -> list[str]:
        """With `PORT` where the port belongs."""
        return [
            *(sys.executable, "-m", "headrace_engine.main", "serve", str(self.model), "--served-model-name"),
            *(servers.NAME, "--port", "PORT", "--threads", str(self.threads)),
            *("--max-sequences", str(self.sequences), "--max-batch-tokens", str(self.batch_tokens)),
            *("--max-model-len", str(self.context), "--kv-cache-bytes", str(self.kv_bytes)),
            *("--record-steps", str(steps)),
        ]


@dataclass(frozen=True)
class Alone:
    """A request that had the engine for itself, with one token of output."""

    prompt: int  # tokens
    ttft: float  # seconds
    steps: range  # among those recorded


@dataclass
class Driver:
    """Sends requests to a running engine."""

    target: Target
    steps: Path
    vocabulary: list[str]
    bare: int = 0  # tokens of a prompt without words
    per_word: float = 1.0  # tokens
    _sent: int = field(default=0)

    @classmethod
    async def of(cls, target: Target, steps: Path, model: Path) -> Driver:
        """Two requests tell what the chat template adds and what a word has."""
        tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        driver = cls(target, steps, workload.vocabulary(list(tokenizer.get_vocab())))
        few, many = [(await driver.ask("probe", words, 2)).prompt_tokens for words in (1, PROBE_WORDS)]
        driver.per_word = (many - few) / (PROBE_WORDS - 1)
        driver.bare = round(few - driver.per_word)
        return driver

    async def ask(self, seed: str, words: int, output: int) -> Sample:
        """One request to its end. Raises ReplayError."""
        self._sent += 1
        message = workload.words(self.vocabulary, f"{seed} {self._sent}", words)
        sample = await send(self.target, self.body(message, output), Sample())
        if sample.error:
            raise ReplayError(sample.error)
        sample.text = ""
        return sample

    def body(self, message: str, output: int) -> bytes:
        """A streaming chat request whose answer has exactly `output` tokens, none of which ends it: such a token is no
        text, so clients would not see it."""
        fields = {
            "model": self.target.model,
            "messages": [{"role": "user", "content": message}],
            "max_tokens": output,
            "min_tokens": output,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return msgspec.json.encode(fields)

    def words_for(self, tokens: int) -> int:
        """Words of a prompt of about so many tokens."""
        return max(1, round((tokens - self.bare) / self.per_word))

    def recorded(self) -> list[Step]:
        """The steps so far."""
        return calibrate.read(self.steps)

    async def alone(self, context: int) -> list[Alone]:
        """Requests that have the engine for themselves."""
        found = []
        for size in ALONE * ALONE_TIMES:
            before = len(self.recorded())
            sample = await self.ask("alone", self.words_for(min(size, context - 8)), 1)
            found.append(Alone(sample.prompt_tokens, sample.ttft, range(before, len(self.recorded()))))
        return found

    async def loaded(self, pairs: Iterator[tuple[int, int]], seconds: float) -> None:
        """The calibration's load: closed loops of rising concurrency, `seconds` together.

        `pairs`: tokens of prompts and answers.
        """
        for concurrency in CONCURRENCIES:
            until = time.perf_counter() + seconds / len(CONCURRENCIES)

            async def worker(until: float = until) -> None:
                while time.perf_counter() < until:
                    prompt, output = next(pairs)
                    await self.ask("calibration", self.words_for(prompt), output)

            await asyncio.gather(*(worker() for _ in range(concurrency)))

    async def replay(self, trace: Trace) -> list[Sample]:
        """Each request at its time, until all have ended."""
        began = time.perf_counter()

        async def one(index: int) -> Sample:
            await asyncio.sleep(max(0.0, began + float(trace.arrival_s[index]) - time.perf_counter()))
            return await self.ask("replay", self.words_for(int(trace.prompt[index])), int(trace.output[index]))

        return await asyncio.gather(*(one(i) for i in range(len(trace))))


def counted(trace: Trace, samples: Sequence[Sample]) -> Trace:
    """The trace as the engine counted its tokens."""
    prompt = np.array([sample.prompt_tokens for sample in samples], dtype=np.int64)
    output = np.array([sample.output_tokens for sample in samples], dtype=np.int64)
    return Trace(trace.name, trace.arrival_s, prompt, output, trace.duration_s)


def seen(samples: Sequence[Sample]) -> Seen:
    """What clients saw."""
    return Seen(np.array([s.ttft for s in samples]), np.array([gap for s in samples for gap in s.gaps]))


def profile_of(steps: Sequence[Step], alone: Sequence[Alone], engine: Engine) -> Profile:
    """A profile of the calibration alone."""
    whole = calibrate.whole(steps)
    outside = [one.ttft - sum(whole[i].seconds for i in one.steps) for one in alone]
    constant, token = calibrate.overhead([one.prompt for one in alone], outside)
    like = Profile(
        name="replayed",
        about="Fitted by the replay beside the simulator to an engine's recorded steps.",
        step_seconds=0.0,
        per_sequence_seconds=0.0,
        per_kv_token_seconds=0.0,
        per_prefill_token_seconds=0.0,
        kv_tokens=engine.sequences * engine.context,
        max_sequences=engine.sequences,
        max_batch_tokens=engine.batch_tokens,
    )
    fitted = calibrate.fit(steps).profile(like)
    return msgspec.structs.replace(
        fitted,
        request_seconds=constant,
        request_token_seconds=token,
        prefill_stretch=calibrate.stretch(steps, fitted),
        scatter=calibrate.scatter(steps, fitted),
    )
