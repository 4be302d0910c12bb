"""The words of `headrace explain tenant`: a Tenant, the Models of its namespace, gateways' states → text. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from headrace.api.gateway_state import GatewayState, TenantState
from headrace.api.model import Model
from headrace.api.quantities import show_count
from headrace.api.slo import BUILTIN_SLO, ServiceLevelObjective
from headrace.api.tenant import ApiKey, Tenant
from headrace.cli.explain_report import table, unseen, why_unseen
from headrace.planning.reasons import Why
from headrace.planning.replicas import why_held
from headrace_wire.reasons import Reason

LEAST_TOKENS = 2  # of a request: one of the prompt, one of the answer
SHOWN_HASH = 12  # hex digits of a key's hash: enough to find it, and no key at all
HOW = "ask the gateways for it with --state, see `headrace explain tenant --help`"
CAUSES = {  # code of an error: what it means, and what changes it
    Reason.QUOTA_EXCEEDED.value: "a limit of spec.quota was used up: wait as Retry-After says, or raise it",
    Reason.REQUEST_TOO_LARGE_FOR_QUOTA.value: "more than spec.quota ever allows: ask for fewer, or raise it",
    Reason.MODEL_NOT_FOUND.value: "no Model of that name is in this namespace",
    Reason.MODEL_NOT_ALLOWED.value: "the Model is not in spec.models",
    Reason.CLASS_NOT_ALLOWED.value: "no class of spec.classes that the Model offers, or x-headrace-class named another",
    Reason.CONTEXT_EXCEEDED.value: "the prompt does not fit the Model's context",
    Reason.INVALID_REQUEST.value: "the body or a header is at fault; the answer names the field",
    Reason.BODY_TOO_LARGE.value: "the body is above the gateway's bound",
    Reason.QUEUE_FULL.value: "the Model's queue was full: more replicas, or fewer requests",
    Reason.DEADLINE_EXCEEDED.value: "waited longer than its class allows: more replicas, or a wider target",
    Reason.NO_CAPACITY.value: "no replica was there to serve it",
    Reason.DRAINING.value: "a gateway or an engine was leaving",
    Reason.ENGINE_FAILED.value: "an engine failed, and no other could take over",
    Reason.ENGINE_TIMEOUT.value: "an engine fell silent",
    Reason.OUT_OF_MEMORY.value: "an engine had no memory for it",
    Reason.INTERNAL.value: "a gateway or an engine failed on it; its log says how",
}


@dataclass(frozen=True)
class Scene:
    """What is known of a tenant."""

    tenant: Tenant
    models: Mapping[str, Model]  # of its namespace, by name
    slos: Mapping[str, ServiceLevelObjective]
    states: Sequence[GatewayState]  # of the gateways that were asked
    now: float  # unix seconds

    @property
    def rows(self) -> list[TenantState]:
        """This tenant in the states."""
        meta = self.tenant.metadata
        key = (meta.namespace, meta.name)
        return [row for state in self.states for row in state.tenants if (row.namespace, row.name) == key]


def report(scene: Scene) -> str:
    """Everything, in sections."""
    sections = (
        ("What keeps its requests from being served", list(_obstacles(scene)) or ["nothing that is known here"]),
        ("Keys", _keys(scene)),
        ("Quota", _quota(scene)),
        ("Models", _models(scene)),
        (_refusals_title(scene), _refusals(scene)),
        ("Conditions", _conditions(scene)),
    )
    lines = [_headline(scene)]
    for title, body in sections:
        lines += ["", title, *(f"  {line}".rstrip() for line in body)]
    return "\n".join(lines)


def _headline(scene: Scene) -> str:
    tenant = scene.tenant
    ready = next((c for c in tenant.status.conditions if c.type == "Ready"), None)
    state = "its state is not known yet"
    if ready is not None and not unseen(tenant):
        state = {"True": "ready", "False": "not ready"}.get(ready.status, "not known to be ready")
        state += f" ({ready.reason})"
    text = f"Tenant {tenant.metadata.name} in namespace {tenant.metadata.namespace}: {state}"
    if unseen(tenant):
        return f"{text}\nIt may not be in force: {why_unseen(tenant.metadata.namespace)}"
    if tenant.status.observed_generation < tenant.metadata.generation:
        text += f"\nThe operator has not yet read generation {tenant.metadata.generation} of the spec."
    return text


def _conditions(scene: Scene) -> Iterator[str]:
    if unseen(scene.tenant):
        yield "none yet"
        return
    rows = [(c.type, c.status, c.reason, c.message) for c in scene.tenant.status.conditions]
    yield from table(rows) if rows else ["none yet"]


def _expired(key: ApiKey, now: float) -> bool:
    return key.expired(datetime.fromtimestamp(now, UTC))


def _keys(scene: Scene) -> Iterator[str]:
    keys = scene.tenant.spec.api_keys
    if not keys:
        yield "none: `headrace key new` makes one and prints the entry for spec.apiKeys"
        return
    rows = []
    for key in keys:
        ends = "never expires" if key.expires_at is None else f"expires {key.expires_at}"
        state = f"expired {key.expires_at}" if _expired(key, scene.now) else f"works, {ends}"
        rows.append((key.name, f"sha256 {key.sha256[:SHOWN_HASH]}…", state))
    yield from table(rows)


def _use(scene: Scene) -> dict[str, int] | None:
    """What is used now, by the quota's fields; None: nobody has told."""
    rows, usage = scene.rows, scene.tenant.status.usage
    if rows:
        return {
            "requestsPerMinute": sum(row.requests_last_minute for row in rows),
            "tokensPerMinute": sum(row.tokens_last_minute for row in rows),
            "tokensPerDay": sum(row.tokens_today for row in rows),
            "concurrentRequests": sum(row.concurrent_requests for row in rows),
        }
    if usage is None:
        return None
    return {
        "requestsPerMinute": usage.requests_last_minute,
        "tokensPerMinute": usage.tokens_last_minute,
        "tokensPerDay": usage.tokens_today,
        "concurrentRequests": usage.concurrent_requests,
    }


def _limits(scene: Scene) -> dict[str, int]:
    quota = scene.tenant.spec.quota.model_dump(by_alias=True)
    return {name: limit for name, limit in quota.items() if limit is not None}


def _quota(scene: Scene) -> Iterator[str]:
    limits, use = _limits(scene), _use(scene)
    source = "gateways, now" if scene.rows else "status.usage, some seconds old and rounded"
    yield f"use as told by: {source}" if use is not None else f"nobody has told what is in use; {HOW}"
    rows = []
    for name in ("requestsPerMinute", "tokensPerMinute", "tokensPerDay", "concurrentRequests"):
        used, limit = None if use is None else use[name], limits.get(name)
        left = "" if used is None or limit is None else f"{max(0, limit - used)} left"
        rows.append((name, "no limit" if limit is None else f"of {limit}", "?" if used is None else str(used), left))
    yield from table([(name, used, limit, left) for name, limit, used, left in rows])
    if (most := limits.get("maxTokensPerRequest")) is not None:
        yield f"one request may ask for {show_count(most, 'output token')} at most (maxTokensPerRequest)"


def _class_of(scene: Scene, model: Model) -> tuple[str | None, str]:
    """The class that a request gets if it names none, and what to know about it."""
    reference = model.spec.service_level_ref
    slo = None if reference is None else scene.slos.get(reference.name)
    offered = [c.name for c in (BUILTIN_SLO if slo is None else slo.spec).classes]
    if slo is None:
        return offered[0], "open to every tenant"
    allowed = scene.tenant.spec.classes
    usable = [name for name in allowed if name in offered]
    if not usable:
        return None, f"spec.classes has [{', '.join(allowed)}], the Model offers [{', '.join(offered)}]"
    others = ", ".join(usable[1:])
    return usable[0], f"by x-headrace-class also: {others}" if others else ""


def _model_row(scene: Scene, name: str) -> tuple[str, str, str, str]:
    model = scene.models.get(name)
    if model is None:
        return name, "there is no such Model", "", ""
    ready = next((c for c in model.status.conditions if c.type == "Ready"), None)
    if unseen(model):
        ready = None
    state = "not known to be ready" if ready is None else f"{'ready' if ready.status == 'True' else 'not ready'}"
    if ready is not None and ready.status != "True":
        state += f" ({ready.reason})"
    chosen, note = _class_of(scene, model)
    return name, state, "no class can be used" if chosen is None else f"class {chosen}", note


def _models(scene: Scene) -> Iterator[str]:
    named = [ref.name for ref in scene.tenant.spec.models]
    if named:
        yield from table([_model_row(scene, name) for name in named])
    else:
        yield "none: spec.models is empty"
    if others := sorted(scene.models.keys() - set(named)):
        yield f"of this namespace it may not call: {', '.join(others)} (spec.models does not name them)"


def _obstacles(scene: Scene) -> Iterator[str]:
    """Each thing that refuses its requests now, or all of them, with what to change."""
    spec = scene.tenant.spec
    if not spec.api_keys:
        yield "it has no key: every request with a key of its own is unauthorized (401)"
    elif all(_expired(key, scene.now) for key in spec.api_keys):
        yield "all of its keys have expired (401): add one, `headrace key new` makes it"
    for name in ("tokensPerMinute", "tokensPerDay"):
        if (limit := _limits(scene).get(name, LEAST_TOKENS)) < LEAST_TOKENS:
            yield f"spec.quota.{name} is {limit}: the shortest request takes {LEAST_TOKENS} tokens, so raise it"
    if unseen(scene.tenant) and not scene.rows:
        yield "no operator has seen it, so that no gateway may know its keys (401): see above"
    for condition in scene.tenant.status.conditions:
        by_model = condition.reason == Why.MODEL_NOT_FOUND.value
        if condition.type != "Ready" and condition.status == "False" and not by_model:
            yield f"{condition.type} is False ({condition.reason}): {condition.message}"
    if not spec.models:
        yield "spec.models is empty: every request is refused (403 model_not_allowed)"
    yield from _models_obstacles(scene)
    use = _use(scene) or {}
    for name, limit in _limits(scene).items():
        if use.get(name, 0) >= limit:
            yield f"{name} is used up, {use[name]} of {limit}: requests are refused (429 quota_exceeded)"


def _models_obstacles(scene: Scene) -> Iterator[str]:
    """What keeps each Model of spec.models from serving it; said of that Model alone where others serve."""
    found = {ref.name: _model_obstacle(scene, ref.name) for ref in scene.tenant.spec.models}
    others = ", ".join(name for name, why in found.items() if why is None)
    for name, why in found.items():
        if why is not None:
            yield f"only requests for {name}, not those for {others}: {why}" if others else why


def _model_obstacle(scene: Scene, name: str) -> str | None:
    model = scene.models.get(name)
    if model is None:
        return f"Model {name} of spec.models does not exist in this namespace (404 model_not_found)"
    if _class_of(scene, model)[0] is None:
        return f"Model {name} offers none of spec.classes (403 class_not_allowed)"
    if unseen(model):
        return f"Model {name} is served by nothing: {why_unseen(model.metadata.namespace)}"
    held = why_held(model, scene.now)
    return None if held is None else f"Model {name} is {held} (503 no_capacity)"


def _refusals_title(scene: Scene) -> str:
    if not scene.states:
        return "Requests"
    return (
        f"Requests since the start of {show_count(len(scene.states), 'gateway')} that {_were(len(scene.states))} asked"
    )


def _were(count: int) -> str:
    return "was" if count == 1 else "were"


def _refusals(scene: Scene) -> Iterator[str]:
    if not scene.states:
        yield f"how many there were, and why some were refused, only gateways know: {HOW}"
        return
    outcomes = _sum(row.outcomes for row in scene.rows)
    refused = _sum(row.refused for row in scene.rows)
    if not scene.rows:
        yield "the gateways that were asked do not know this tenant: do they serve its namespace?"
        return
    served = ", ".join(f"{number} {name}" for name, number in outcomes.items() if number)
    yield f"ended: {served or 'none'}"
    if not refused:
        yield "none was refused"
    yield from table([(str(number), code, CAUSES.get(code, "")) for code, number in refused.most_common()])


def _sum(rows: Iterable[Mapping[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for row in rows:
        total.update(row)
    return total
