"""Engines that share CPUs: how threads wait decides whether they take turns or burn each other's time."""

from __future__ import annotations

import asyncio
import time

import httpx
import pytest

from headrace.testing.engine_process import EngineProcess

TOKENS = 150
LIMITS = ("--max-sequences", "2", "--kv-cache-bytes", "64Mi", "--threads", "2")
OWN_POLICY = {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": None}  # as without the tests' own thrift


async def seconds(engine: EngineProcess) -> float:
    """For a fixed piece of work."""
    async with httpx.AsyncClient(base_url=engine.url, timeout=300) as client:
        body = {"model": "demo", "prompt": "TTFT is", "max_tokens": TOKENS, "ignore_eos": True}
        began = time.perf_counter()
        assert (await client.post("/v1/completions", json=body)).status_code == 200
        return time.perf_counter() - began


def engine() -> EngineProcess:
    return EngineProcess("builtin://demo", *LIMITS, env=OWN_POLICY)


def test_two_on_the_same_cpus_do_not_slow_each_other_tenfold() -> None:
    """Each has a thread a CPU: side by side each would have half. Spinning without end made it tenfold and more."""

    async def main() -> tuple[float, float]:
        async with engine() as first:
            await seconds(first)
            alone = min([await seconds(first) for _ in range(3)])
            async with engine() as second:
                await seconds(second)
                rounds = [max(await asyncio.gather(seconds(first), seconds(second))) for _ in range(3)]
        return alone, min(rounds)

    alone, together = asyncio.run(main())
    assert together < 10 * alone


@pytest.mark.parametrize(("threads", "policy"), [("1", "passive"), ("0", None)], ids=["one-thread", "as-many-as-cpus"])
def test_policy_and_memory_are_said_at_the_start(threads: str, policy: str | None) -> None:
    async def main() -> EngineProcess:
        arguments = ("--threads", threads, "--kv-cache-bytes", "64Mi")
        async with EngineProcess("builtin://demo", *arguments, env={"OMP_WAIT_POLICY": None}) as started:
            return started

    lines = {line.get("message"): line for line in asyncio.run(main()).lines}
    memory = lines["memory"]
    assert memory["pool_bytes"] == (memory["total_pages"] + 1) * memory["page_bytes"] <= 64 << 20
    assert f"{memory['pool_bytes'] / (1 << 20):.2f} MiB of KV ({memory['total_pages']} pages" in memory["arithmetic"]
    assert f"{memory['kv_tokens']} tokens" in memory["arithmetic"]
    starting = lines["starting"]
    expected = policy or ("short spin" if starting["cpus_allowed"] > 1 else "passive")
    assert starting["threads_wait"] == expected
    assert starting["threads"] == (int(threads) or starting["cpus_allowed"])
