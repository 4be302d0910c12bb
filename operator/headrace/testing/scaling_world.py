"""One Model under the autoscaler, second by second, through the real `merge`: gauges in, decisions out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headrace.api.gateway_state import Answered, ClassState, EngineReport, GatewayState, ModelState
from headrace.scaling import Decision, Memory, Policy, Reason, Replicas, decide
from headrace.scaling.samples import GatewayReport, merge
from headrace.scaling.types import ClassPolicy
from headrace.scaling.window import Window
from headrace_wire.protocol import EngineState, ModelInfo

T0 = 1_700_000_000.0
KEY = ("ns", "chat")
SLOTS = 4
INTERACTIVE = ClassPolicy(name="interactive", priority=100, max_queue_age_s=1.0, ttft_s=2.0, objective_percent=95)
BATCH = ClassPolicy(name="batch", priority=10, max_queue_age_s=30.0, ttft_s=60.0, objective_percent=90)


def policy(**more: Any) -> Policy:
    defaults = {
        "min_replicas": 0,
        "max_replicas": 8,
        "max_sequences": SLOTS,
        "down_after_s": 20.0,
        "to_zero_after_s": 60.0,
        "classes": (INTERACTIVE, BATCH),
    }
    return Policy(**{**defaults, **more})


@dataclass
class Gauge:
    """What one gateway shows of one class at one second."""

    queued: Any = 0
    age: Any = None
    in_flight: Any = 0
    good: Any = 0
    offered: Any = 0
    admitted: Any = 0
    queued_tokens: Any = 0
    answered: Any = 0
    prompt_tokens: Any = 0
    output_tokens: Any = 0


@dataclass
class World:
    """Feeds a Window second by second, through the real `merge`."""

    policy: Policy
    now: float = T0
    uptime: Any = 100_000.0
    last_request: Any = None
    engines: int = 1
    engine: dict[str, Any] = field(default_factory=dict)
    window: Window = field(init=False)

    def __post_init__(self) -> None:
        self.window = Window(self.policy)

    def state(self, gauges: dict[str, Gauge]) -> GatewayState:
        shown = [
            ClassState(
                name=name,
                queued=g.queued,
                queued_tokens=g.queued_tokens,
                oldest_age_s=g.age,
                in_flight=g.in_flight,
                outcomes={"good": g.good},
                offered=g.offered,
                admitted=g.admitted,
                answered=Answered(requests=g.answered, prompt_tokens=g.prompt_tokens, output_tokens=g.output_tokens),
            )
            for name, g in gauges.items()
        ]
        engines = [
            EngineReport(
                pod=f"p{n}",
                address="x",
                age_s=self.engine.get("age_s", 0.2),
                state=EngineState(model=ModelInfo(name="m"), **{k: v for k, v in self.engine.items() if k != "age_s"}),
            )
            for n in range(self.engines)
        ]
        model = ModelState(
            namespace="ns",
            name="chat",
            classes=shown,
            engines=engines,
            last_request_age_s=self.last_request,
        )
        return GatewayState(gateway="gw", started_at=T0 - 50_000, uptime_s=self.uptime, models=[model])

    def see(self, interactive: Gauge | None = None, batch: Gauge | None = None, *, answers: bool = True) -> None:
        """One more sample, now."""
        gauges = {"interactive": interactive or Gauge(), "batch": batch or Gauge()}
        state = self.state(gauges) if answers else None
        self.window.add(merge([GatewayReport("gw", self.now, state)], self.now, [KEY])[KEY])

    def run(self, seconds: int, interactive: Gauge | None = None, batch: Gauge | None = None) -> World:
        """`seconds` more samples, one a second, that end now."""
        for _ in range(seconds):
            self.now += 1
            self.see(interactive, batch)
        return self

    def decide(self, replicas: Replicas, memory: Memory | None = None) -> Decision:
        return decide(self.policy, self.window, replicas, self.now, memory)


def ready(n: int, **more: Any) -> Replicas:
    return Replicas(**{"current": n, "ready": n, "changed_at": T0 - 1000, "cold_start_s": 10.0, **more})


def world(**more: Any) -> World:
    return World(policy(**more))


def answer(d: Decision) -> tuple[int, Reason]:
    assert d.winner in {c.name for c in d.candidates}
    return d.replicas, d.reason


def served(n: int, good: int, in_flight: int) -> Gauge:
    return Gauge(in_flight=in_flight, good=good, offered=n, admitted=n)
