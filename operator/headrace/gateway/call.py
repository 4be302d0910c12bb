"""One request, understood: what stands between its body and its dispatch."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from headrace.admission.types import Ask
from headrace.api.model import Model
from headrace.gateway.body import Body
from headrace.gateway.dialects import HeadraceDialect
from headrace.gateway.events import Usage
from headrace.gateway.identity import Target
from headrace.gateway.ledger import Times
from headrace.planning.judge import known_shape
from headrace_wire.keys import tenant_salt
from headrace_wire.protocol import RequestHints
from headrace_wire.reasons import Reason, RequestError

_WELL_FORMED = re.compile(rb"[A-Za-z0-9._:-]{1,64}")
_START = os.urandom(6).hex()
_NUMBERS = itertools.count(1)
TEMPLATE_TOKENS = 65_536  # that a template may add to a prompt
PER_BYTE = 12  # tokens of one byte at most: normalization lengthens some texts
_salt = lru_cache(maxsize=4096)(tenant_salt)


def new_id() -> str:
    """Unique over requests, gateways and restarts."""
    return f"{_START}-{next(_NUMBERS):x}"


def request_ids(header: bytes | None) -> tuple[str, str]:
    """(x-request-id of the answer, the id that engines get).

    The first is the client's if it is well-formed, else ours. The second holds it, and is unique whatever clients send.
    """
    own = new_id()
    if header is None or not _WELL_FORMED.fullmatch(header):
        return own, own
    shown = header.decode()
    return shown, f"{shown}~{own}"


def client_deadline(header: bytes | None) -> float | None:
    """Seconds of x-headrace-deadline-ms. Raises RequestError."""
    if header is None:
        return None
    if not header.isdigit() or not 0 < len(header) <= 9 or int(header) == 0:
        name = "x-headrace-deadline-ms"
        raise RequestError(Reason.INVALID_REQUEST, f"{name}: must be a whole number of milliseconds", param=name)
    return int(header) / 1000


@dataclass
class Call:
    """One request that is authenticated and valid."""

    id: str  # unique; engines know the request by it
    target: Target
    body: Body
    size: int  # bytes of the client's body
    times: Times
    prompt_tokens: int  # estimated until `counted`
    deadline_s: float | None  # the client's own, after arrival
    longest_prompt: int = 0  # tokens, once counted
    counted: bool = False
    output_limit: int = 0  # of one choice
    context: int | None = None  # tokens, that the output limit was cut to; None = unknown
    dialect: HeadraceDialect = field(init=False)
    model: tuple[str, str] = field(init=False)  # namespace, name
    tenant: tuple[str, str] = field(init=False)  # namespace, name
    labels: tuple[str, str, str] = field(init=False)  # of metrics: namespace, model, class

    def __post_init__(self) -> None:
        model, tenant = self.target.model.metadata, self.target.tenant.metadata
        self.dialect = HeadraceDialect(self.body)
        self.model = (model.namespace, model.name)
        self.tenant = (tenant.namespace, tenant.name)
        self.labels = (*self.model, self.target.service.name)

    def take_counts(self, tokens: Sequence[int]) -> None:
        """Each prompt has so many tokens."""
        self.prompt_tokens, self.longest_prompt, self.counted = sum(tokens), max(tokens), True

    def fit(self, context: int | None, default: int) -> None:
        """Take the output limit that the context allows. Raises RequestError."""
        self.context, self.output_limit = context, output_limit(self, context, default)

    def ask(self) -> Ask:
        """What it may cost."""
        return Ask(self.prompt_tokens, self.output_limit, self.body.choices)

    def believes(self, usage: Usage) -> bool:
        """An engine can have counted so for this request: within context and output limit, and nothing below zero."""
        longest = self.size * PER_BYTE + TEMPLATE_TOKENS
        if self.context is not None:
            longest = min(longest, self.context * self.body.prompt_count)
        prompt, made = usage.prompt_tokens, usage.completion_tokens
        return 0 <= usage.cached <= prompt <= longest and 0 <= made <= self.ask().output_total

    def hints(self, gateway: str, now: float, request_s: float, sent: int) -> RequestHints:
        """What an engine is told beside the body; durations are from `now` on; `sent`: how often it was sent before."""
        waited, service = now - self.times.arrived, self.target.service
        limit = request_s if self.deadline_s is None else min(request_s, self.deadline_s)
        return RequestHints(
            id=self.id if sent == 0 else f"{self.id}.{sent}",
            holder=gateway,
            priority=service.priority,
            ttft_ms=max(0.0, service.ttft_s - waited) * 1000,
            tpot_ms=service.tpot_s * 1000,
            left_ms=max(1.0, (limit - waited) * 1000),
            salt=self._salt(),
        )

    def _salt(self) -> str:
        tenant, model = self.target.tenant, self.target.model
        scope, owner = model.spec.cache.scope, ""
        if scope == "group" and tenant.spec.cache_group:
            owner = f"{tenant.metadata.namespace}/{tenant.spec.cache_group}"
        elif scope != "shared":
            scope, owner = "tenant", tenant.metadata.uid or "/".join(self.tenant)
        return _salt(model.metadata.uid, scope, owner)


def context_of(model: Model, reported: int | None) -> int | None:
    """The context length: the least of what the Model says and what its engines report; None = unknown.

    Where no engine reports, as at zero replicas, what its status kept of the last ones stands for that.
    """
    known = [model.spec.context.max_tokens, _kept_context(model) if reported is None else reported]
    return min((length for length in known if length), default=None)


def _kept_context(model: Model) -> int | None:
    """Of the engines that ran this very spec, else of the model's own shape."""
    engine, current = model.status.engine, model.status.observed_generation >= model.metadata.generation
    if engine is not None and engine.max_tokens and current:
        return engine.max_tokens
    try:
        shape = known_shape(model, None)
    except ValueError:  # a built-in model that this version does not know
        return None
    return None if shape is None else shape.max_positions


def check_context(prompt_tokens: int, context: int | None, param: str) -> None:
    """Raises RequestError CONTEXT_EXCEEDED, with both numbers, if no answer fits behind the prompt."""
    if context is not None and prompt_tokens + 1 > context:
        raise RequestError(
            Reason.CONTEXT_EXCEEDED,
            f"the prompt has {prompt_tokens} tokens and needs one more for the answer, "
            f"but the model's context is {context} tokens",
            param=param,
        )


def output_limit(call: Call, context: int | None, default: int) -> int:
    """The limit of one choice in force: the client's, cut to the context, or one that context and quota allow.

    Raises RequestError if the client wants more at least.
    """
    bounds = [default]
    if call.body.output_limit is not None:
        bounds = [call.body.output_limit]
    else:
        quota, choices = call.target.tenant.spec.quota, call.body.choices
        if quota.max_tokens_per_request is not None:
            bounds.append(quota.max_tokens_per_request // choices)
        for limit in (quota.tokens_per_minute, quota.tokens_per_day):
            if limit is not None:
                bounds.append((limit - call.prompt_tokens) // choices)
    if context is not None:
        bounds.append(context - (call.longest_prompt if call.counted else 1))  # an estimate may be far above
    limit, least = max(0 if call.body.only_echoes else 1, min(bounds)), call.body.min_tokens
    if least is not None and least > limit:
        message = f"min_tokens: is {least}, but context and quota leave {limit} tokens of output"
        raise RequestError(Reason.INVALID_REQUEST, message, param="min_tokens")
    return limit
