"""Bounded load: callers, each with one request at a time, for a fixed time; more of them until answers take their time.

Run as `python -m rig.load --url URL --model NAME ...` with the key in HEADRACE_KEY; prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rig.chat import Answer, Endpoint, chat, question

QUESTIONS = (
    "What is TTFT?",
    "What is paged attention?",
    "What does the gateway do?",
    "Explain the KV cache.",
    "What is goodput?",
    "What is continuous batching?",
    "What is a Tenant?",
    "What is queue age?",
)


@dataclass(frozen=True)
class Offer:
    """What is offered, and how long."""

    model: str
    callers: int
    seconds: float
    max_tokens: int = 64
    pause_s: float = 0.0  # mean think time of a caller
    seed: int = 0
    headers: tuple[tuple[str, str], ...] = ()
    fields: dict[str, Any] = field(default_factory=dict)
    wait_s: float = 0.0  # callers are added until half of the answers begin so late; 0: none are added
    most: int = 64  # callers


class Load:
    """Callers in threads; start, then stop or join for the answers."""

    def __init__(self, endpoint: Endpoint, offer: Offer):
        self.endpoint, self.offer = endpoint, offer
        self.answers: list[Answer] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._ends = time.monotonic() + offer.seconds
        self._threads: list[threading.Thread] = []

    def start(self) -> Load:
        """Begin to call."""
        self._ends = time.monotonic() + self.offer.seconds
        for _ in range(self.offer.callers):
            self._add()
        if self.offer.wait_s:
            threading.Thread(target=self._grow, daemon=True).start()
        return self

    def _add(self) -> None:
        thread = threading.Thread(target=self._call, args=(len(self._threads),), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _grow(self) -> None:
        """Add a caller every half second until half of the newest answers, one of each, began late enough."""
        while len(self._threads) < self.offer.most and time.monotonic() < self._ends and not self._stop.wait(0.5):
            with self._lock:
                newest = self.answers[-len(self._threads) :]
            late = sum(a.ttft_s is not None and a.ttft_s >= self.offer.wait_s for a in newest)
            if 2 * late >= len(self._threads):
                return
            self._add()

    def _call(self, number: int) -> None:
        chance = random.Random(self.offer.seed * 1000 + number)
        while time.monotonic() < self._ends and not self._stop.is_set():
            body = question(self.offer.model, chance.choice(QUESTIONS), max_tokens=self.offer.max_tokens)
            answer = chat(self.endpoint, {**body, **self.offer.fields}, headers=dict(self.offer.headers))
            with self._lock:
                self.answers.append(answer)
            self._stop.wait(chance.expovariate(1 / self.offer.pause_s) if self.offer.pause_s else 0)

    def stop(self) -> list[Answer]:
        """End after the requests under way; all answers."""
        self._stop.set()
        return self.join()

    def join(self) -> list[Answer]:
        """Wait for the time to pass; all answers."""
        for thread in self._threads:  # those that come while it waits are joined, too
            thread.join(self.offer.seconds + 180)
        with self._lock:
            return list(self.answers)


def summary(answers: Sequence[Answer]) -> dict[str, Any]:
    """Counts and latency percentiles of answers; never any text."""
    ttft = sorted(a.ttft_s for a in answers if a.ok and a.ttft_s is not None)
    kinds = Counter("ok" if a.ok else str((a.error or {}).get("code") or a.broken or a.status) for a in answers)
    return {
        "requests": len(answers),
        "outcomes": dict(kinds),
        "tokens": sum(a.tokens for a in answers),
        "ttft_p50_s": round(ttft[len(ttft) // 2], 3) if ttft else None,
        "ttft_p95_s": round(ttft[int(len(ttft) * 0.95)], 3) if ttft else None,
    }


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True, help="gateway, such as http://127.0.0.1:8080")
    parser.add_argument("--model", required=True)
    parser.add_argument("--callers", type=int, default=8, help="requests at one time")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument(
        "--wait", type=float, default=0.0, help="add callers until half of the answers begin so late, s"
    )
    parser.add_argument("--pause", type=float, default=0.0, help="mean seconds between a caller's requests")
    arguments = parser.parse_args()
    key = os.environ.get("HEADRACE_KEY")
    if not key:
        print("rig.load: set HEADRACE_KEY to the tenant's key", file=sys.stderr)
        return 2
    offer = Offer(
        arguments.model,
        arguments.callers,
        arguments.seconds,
        arguments.max_tokens,
        pause_s=arguments.pause,
        wait_s=arguments.wait,
    )
    print(json.dumps(summary(Load(Endpoint(arguments.url, key), offer).start().join())))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
