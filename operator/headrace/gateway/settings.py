"""What a gateway is told at start. Durations are seconds; where it says so, 0 means no limit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """Limits of one gateway."""

    gateway: str  # id: the pod's name; engines know our requests by it
    body_bytes: int = 3 * 1024 * 1024  # a longer body is refused with 413; engines take 4 MiB
    body_s: float = 30.0  # for a body to arrive
    hold_s: float = 10.0  # headers are withheld so long at most from clients that stream
    beat_s: float = 10.0  # between the comments that keep a waiting stream open
    first_s: float = 120.0  # for an engine's first byte, and then its first event; 0 = no limit
    idle_s: float = 60.0  # between two pieces of an answer; 0 = no limit
    stall_s: float = 60.0  # a client that reads nothing for so long is dropped; 0 = no limit
    connect_s: float = 2.0  # for a connection to an engine
    request_s: float = 900.0  # of a whole request; the engine ends it then
    default_output: int = 1024  # output tokens where the client gives no limit
    max_answer: int = 32 * 1024 * 1024  # bytes of chunks joined for a client that does not stream
    queue_requests: int = 1000  # waiting requests of one model
    queue_bytes: int = 64 * 1024 * 1024  # of waiting bodies of one model
    cold_wait_s: float = 300.0  # that a request waits for a first replica
    retry_percent: int = 10  # retries per 100 requests that succeeded
    busy_poll_s: float = 0.2  # between two reports of an engine that works
    idle_poll_s: float = 2.0  # of one that does not
    linger_s: float = 5.0  # after SIGTERM, serving on while the endpoint's removal spreads
    drain_s: float = 110.0  # after that, for requests to end
