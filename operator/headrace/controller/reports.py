"""What gateways and engines report, as statuses show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.api.gateway_state import EngineReport
from headrace.cluster.resources import Key
from headrace.controller.shared import GatewayView
from headrace.planning.live import ClassFigures
from headrace.scaling.signals import goodput, queue_ages
from headrace.scaling.types import Policy, Sample
from headrace.scaling.window import Window

FIGURES_S = 300.0  # span of the goodput that a status shows


def figures(policy: Policy, window: Window, sample: Sample, now: float) -> tuple[ClassFigures, ...]:
    """What the status may show; nothing while no gateway has told of the Model."""
    if not sample.gateways:
        return ()
    ages = queue_ages(policy, sample)
    ended = goodput(policy, window, now, FIGURES_S)
    return tuple(
        ClassFigures(
            c.name,
            goodput=None if not ended[c.name].offered else ended[c.name].good / ended[c.name].offered,
            queue_age_s=ages.get(c.name),
        )
        for c in policy.classes
    )


def engines_of(gateways: Sequence[GatewayView], key: Key) -> tuple[EngineReport, ...]:
    """The freshest report of each engine of a Model, over all gateways."""
    found: dict[str, EngineReport] = {}
    for gateway in gateways:
        for model in gateway.state.models if gateway.state is not None else ():
            if (model.namespace, model.name) != key:
                continue
            for engine in model.engines:
                known = found.get(engine.pod)
                if engine.state is not None and (known is None or (engine.age_s or 0.0) < (known.age_s or 0.0)):
                    found[engine.pod] = engine
    return tuple(found[pod] for pod in sorted(found))


def essence(engines: Sequence[EngineReport]) -> Mapping[str, object]:
    """What a status shows of engines: it changes seldom."""
    return {e.pod: (e.state.model, e.state.engine, e.state.total) for e in engines if e.state is not None}
