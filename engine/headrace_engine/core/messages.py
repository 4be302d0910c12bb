"""Messages between the API process and the core: msgpack over ZeroMQ PUSH/PULL, one message a frame."""

from __future__ import annotations

from typing import Literal

import msgspec

from headrace_wire.protocol import Abort, Delta, EngineState, KvGroup, ModelInfo, StepTimes, Submit
from headrace_wire.shape import ModelShape


class Control(msgspec.Struct, frozen=True, kw_only=True, tag="control"):
    """An order to the whole core.

    `reset_cache`: every cached prefix is forgotten and the epoch grows. `drain`: new Submits end with DRAINING, what
    runs goes on. `stop`: everything ends with DRAINING and the core exits with code 0.
    """

    kind: Literal["reset_cache", "drain", "stop"]


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The core's first message: the model is loaded and requests are taken."""

    model: ModelInfo
    shape: ModelShape
    memory: dict[str, int]  # the pool's arithmetic; bytes, but for keys that end in `_pages`
    kv_groups: list[KvGroup]
    total_pages: int
    cache_root: str
    step_times: StepTimes | None = None  # as measured at the start; None: there was no time for it


class Deltas(msgspec.Struct, frozen=True, kw_only=True, tag="deltas"):
    """What one step brought, over all requests; several Deltas of one request keep their order.

    A token that ended a generation (an id of `stop_ids`) is in the last Delta's tokens, in the last place.
    """

    items: list[Delta]


class StateReport(msgspec.Struct, frozen=True, kw_only=True, tag="state"):
    """The core's part of the state; the API process adds what only it knows.

    That is: `engine`, `startup_s`, the model's `revision` and `tokenizer`, and `pending_step_age_ms` (the core is
    silent while a step runs: it is the time since its last message while something is running or waiting).
    """

    state: EngineState


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The core's last message before it exits with a code other than 0."""

    reason: str  # CamelCase, as in a Termination: OutOfMemory, ModelInvalid, ArchitectureUnsupported, EngineFailed
    message: str
    file: str = ""  # the file at fault, relative to the model folder


ToCore = Submit | Abort | Control
FromCore = Ready | Deltas | StateReport | Failed


def to_core_decoder() -> msgspec.msgpack.Decoder[ToCore]:
    """Decodes what the API process sends."""
    return msgspec.msgpack.Decoder(ToCore)


def from_core_decoder() -> msgspec.msgpack.Decoder[FromCore]:
    """Decodes what the core sends."""
    return msgspec.msgpack.Decoder(FromCore)


def encoder() -> msgspec.msgpack.Encoder:
    """Encodes both directions."""
    return msgspec.msgpack.Encoder()


__all__ = [
    "Abort",
    "Control",
    "Delta",
    "Deltas",
    "Failed",
    "FromCore",
    "Ready",
    "StateReport",
    "Submit",
    "ToCore",
    "encoder",
    "from_core_decoder",
    "to_core_decoder",
]
