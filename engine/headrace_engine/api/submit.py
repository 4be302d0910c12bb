"""A checked body and its prompt tokens to the Submits of its choices. Pure."""

from __future__ import annotations

import array
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from headrace_engine.api.defaults import NO_DEFAULTS, Defaults
from headrace_engine.api.schema import Generation, invalid
from headrace_wire.protocol import RequestHints, Sampling, Submit
from headrace_wire.reasons import Reason, RequestError


@dataclass(frozen=True)
class Limits:
    """What a request must fit in."""

    context: int  # tokens, prompt + output
    pool: int  # tokens that the whole KV pool holds
    vocabulary: int  # token ids are below it


def token_bytes(tokens: Sequence[int]) -> bytes:
    """Token ids as little-endian int32."""
    words = array.array("i", tokens)
    if words.itemsize != 4:
        return b"".join(token.to_bytes(4, "little") for token in tokens)
    return words.tobytes()


def child_seed(seed: int, index: int) -> int:
    """The seed of one choice (64 bits): the first choice has the request's own."""
    if index == 0:
        return seed & ((1 << 64) - 1)
    data = (seed & ((1 << 64) - 1)).to_bytes(8, "little") + index.to_bytes(8, "little")
    return int.from_bytes(hashlib.sha256(b"headrace.choice.v1" + data).digest()[:8], "little")


def check_prompt(tokens: Sequence[int], limits: Limits, param: str) -> None:
    """Raises RequestError if the prompt can never run here."""
    count = len(tokens)
    if count == 0:
        raise invalid(param, "has no tokens")
    if count + 1 > limits.context:
        raise RequestError(
            Reason.CONTEXT_EXCEEDED,
            f"the prompt has {count} tokens; the context of {limits.context} tokens must also hold one of output",
            param=param,
        )
    if count + 1 > limits.pool:
        raise RequestError(
            Reason.CONTEXT_EXCEEDED,
            f"the prompt has {count} tokens; the engine's memory holds {limits.pool}, one of output included",
            param=param,
        )
    if not 0 <= min(tokens) <= max(tokens) < limits.vocabulary:
        raise invalid(param, f"token ids are 0 to {limits.vocabulary - 1}")


def _stop_ids(body: Generation, eos_ids: tuple[int, ...], limits: Limits) -> tuple[int, ...]:
    asked = tuple(body.stop_token_ids or ())
    if asked and not 0 <= min(asked) <= max(asked) < limits.vocabulary:
        raise invalid("stop_token_ids", f"token ids are 0 to {limits.vocabulary - 1}")
    return asked if body.ignore_eos else tuple(dict.fromkeys((*eos_ids, *asked)))


def _biases(body: Generation, limits: Limits) -> tuple[tuple[int, float], ...]:
    biases = {int(token): float(bias) for token, bias in (body.logit_bias or {}).items()}
    if biases and max(biases) >= limits.vocabulary:
        raise invalid("logit_bias", f"token ids are 0 to {limits.vocabulary - 1}")
    return tuple(sorted(biases.items()))


def sampling_of(body: Generation, limits: Limits, defaults: Defaults, seed: int) -> Sampling:
    """What the body asks for, the model's own defaults where it says nothing. Raises RequestError."""
    return Sampling(
        temperature=_given(body.temperature, defaults.temperature),
        top_p=_given(body.top_p, defaults.top_p),
        top_k=min(max(defaults.top_k if body.top_k is None else body.top_k, 0), limits.vocabulary),
        seed=seed,
        min_p=_given(body.min_p, defaults.min_p),
        presence=_given(body.presence_penalty, 0.0),
        frequency=_given(body.frequency_penalty, 0.0),
        repetition=_given(body.repetition_penalty, defaults.repetition_penalty),
        bias=_biases(body, limits),
        min_tokens=body.min_tokens or 0,
        logprobs=body.top,
    )


def _given(value: float | None, default: float) -> float:
    return default if value is None else float(value)


@dataclass(frozen=True)
class Fresh:
    """What a request gets where its body brings none: its id, its seed (64 bits), the model's sampling defaults."""

    identity: str
    seed: int
    defaults: Defaults = NO_DEFAULTS


def submits(
    body: Generation, tokens: Sequence[int], limits: Limits, *, eos_ids: tuple[int, ...], fresh: Fresh
) -> list[Submit]:
    """One Submit a choice; all but the first wait for the first one's prefill. Raises RequestError."""
    hints = body.headrace or RequestHints()
    identity, seed = hints.id or fresh.identity, fresh.seed if body.seed is None else body.seed
    room = min(limits.context, limits.pool) - len(tokens)
    limit, choices = body.limit[1], body.n or 1
    stop_ids, data = _stop_ids(body, eos_ids, limits), token_bytes(tokens)
    sampling = sampling_of(body, limits, fresh.defaults, child_seed(seed, 0))
    return [
        Submit(
            id=identity if choices == 1 else f"{identity}:{index}",
            tokens=data,
            sampling=msgspec.structs.replace(sampling, seed=child_seed(seed, index)),
            max_tokens=room if limit is None else min(limit, room),
            stop_ids=stop_ids,
            priority=hints.priority,
            ttft_ms=hints.ttft_ms,
            tpot_ms=hints.tpot_ms,
            left_ms=hints.left_ms,
            salt=bytes.fromhex(hints.salt),
            holder=hints.holder,
            after=f"{identity}:0" if index else "",
        )
        for index in range(choices)
    ]
