"""Mailboxes: order, failures after what waits, the bound in bytes."""

from __future__ import annotations

import asyncio

import pytest

from headrace_engine.api.mailbox import Mailbox, failure
from headrace_wire.protocol import Delta, Finish
from headrace_wire.reasons import Reason, RequestError


def box(ids: list[str], bound: int = 10_000) -> tuple[Mailbox, list[str]]:
    overflows: list[str] = []
    return Mailbox(ids, bound, lambda: overflows.append("x"), 0.0), overflows


def test_deltas_come_in_order_with_their_choice() -> None:
    async def main() -> None:
        mailbox, _ = box(["r:0", "r:1"])
        mailbox.put(Delta(id="r:1", tokens=[1]))
        mailbox.put(Delta(id="r:0", tokens=[2], finish=Finish.STOP))
        assert [(index, delta.tokens) for index, delta in await mailbox.get()] == [(1, [1]), (0, [2])]
        assert mailbox.unfinished == {"r:1"}
        waiting = asyncio.create_task(mailbox.get())
        await asyncio.sleep(0)
        mailbox.put(Delta(id="r:1", finish=Finish.LENGTH))
        assert (await waiting)[0][1].finish is Finish.LENGTH
        assert not mailbox.unfinished

    asyncio.run(main())


def test_a_failure_comes_after_what_waits() -> None:
    async def main() -> None:
        mailbox, _ = box(["r"])
        mailbox.put(Delta(id="r", tokens=[1]))
        mailbox.put(Delta(id="r", error=Reason.DEADLINE_EXCEEDED))
        mailbox.fail(failure(Reason.ENGINE_FAILED))
        assert len(await mailbox.get()) == 1
        with pytest.raises(RequestError) as caught:
            await mailbox.get()
        assert caught.value.reason is Reason.DEADLINE_EXCEEDED

    asyncio.run(main())


def test_overflow_is_told_once_and_lets_go() -> None:
    mailbox, overflows = box(["r"], bound=1000)
    for _ in range(50):
        mailbox.put(Delta(id="r", tokens=[1] * 10))
    assert overflows == ["x"]
    assert mailbox.overflowed
    assert mailbox.unfinished == {"r"}
    mailbox.put(Delta(id="r", error=Reason.SLOW_READER))
    assert not mailbox.unfinished


def test_a_dismissed_choice_cannot_fail_the_others() -> None:
    async def main() -> None:
        mailbox, _ = box(["r:0", "r:1"])
        mailbox.dismiss("r:0")
        mailbox.put(Delta(id="r:0", error=Reason.CANCELLED))
        mailbox.put(Delta(id="r:1", tokens=[1], finish=Finish.STOP))
        assert [index for index, _ in await mailbox.get()] == [1]
        assert not mailbox.unfinished

    asyncio.run(main())
