"""Cores that misbehave, run as real child processes: targets of a CoreLink."""

from __future__ import annotations

import os
import time

from headrace_engine.config import EngineConfig
from headrace_engine.core.link import Link
from headrace_engine.core.messages import Abort, Control, Deltas, Failed, Ready, StateReport, Submit
from headrace_wire.protocol import Delta, EngineState, Finish, ModelInfo
from headrace_wire.reasons import Reason
from headrace_wire.shape import ModelShape

MODEL = ModelInfo(name="m", max_tokens=1 << 20, max_sequences=4)
SHAPE = ModelShape(
    architecture="LlamaForCausalLM",
    layers=1,
    hidden=8,
    heads=1,
    kv_heads=1,
    head_dim=8,
    intermediate=8,
    vocab=258,
    max_positions=1 << 20,
)
READY = Ready(model=MODEL, shape=SHAPE, memory={}, kv_groups=[], total_pages=1 << 16, cache_root="ab" * 32)


def _stopped(message: object) -> bool:
    return isinstance(message, Control) and message.kind == "stop"


def fast(config: EngineConfig, inbound: str, outbound: str) -> None:
    """Sends tokens as fast as it can, round and round, until a request is aborted or complete."""
    link = Link(inbound, outbound)
    link.send(READY)
    left: dict[str, int] = {}
    while True:
        for message in link.receive(0.0 if left else 0.1):
            if _stopped(message):
                link.close()
                return
            if isinstance(message, Submit):
                left[message.id] = message.max_tokens
            if isinstance(message, Abort):
                link.send(Deltas(items=[Delta(id=i, error=message.reason) for i in message.ids if left.pop(i, None)]))
        items = []
        for identity in list(left):
            left[identity] -= 1
            done = left[identity] == 0
            items.append(Delta(id=identity, tokens=[65], finish=Finish.LENGTH if done else None))
            if done:
                del left[identity]
        if items:
            link.send(Deltas(items=items))
            time.sleep(0.0005)
        link.send(StateReport(state=EngineState(model=MODEL, running=len(left))))


def refuses_to_start(config: EngineConfig, inbound: str, outbound: str) -> None:
    """Says why, and ends."""
    link = Link(inbound, outbound)
    link.send(Failed(reason="OutOfMemory", message="no room for one sequence"))
    link.close()
    raise SystemExit(1)


def vanishes(config: EngineConfig, inbound: str, outbound: str) -> None:
    """Ends without a word before it is ready."""
    os._exit(9)


def stalls(config: EngineConfig, inbound: str, outbound: str) -> None:
    """Reports, but never makes progress."""
    link = Link(inbound, outbound)
    link.send(READY)
    while not any(_stopped(message) for message in link.receive(0.02)):
        link.send(StateReport(state=EngineState(model=MODEL, running=0, waiting=1)))
    link.close()


def babbles(config: EngineConfig, inbound: str, outbound: str) -> None:
    """Mixes nonsense, unknown ids and refusals into its messages."""
    link = Link(inbound, outbound)
    link.send(READY)
    while True:
        for message in link.receive(0.1):
            if _stopped(message):
                link.close()
                return
            if isinstance(message, Submit):
                link._out.send(b"\xc1 nonsense")
                link.send(Deltas(items=[Delta(id="nobody", tokens=[1]), Delta(id=message.id, tokens=[65])]))
                link.send(Deltas(items=[Delta(id=message.id, error=Reason.OUT_OF_MEMORY)]))


def deaf(config: EngineConfig, inbound: str, outbound: str) -> None:
    """Never ends by itself."""
    link = Link(inbound, outbound)
    link.send(READY)
    while True:
        time.sleep(1)
