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
    ends = (token for token in eos_ids if 0 <= token < limits.vocabulary)  # others are never drawn
    return asked if body.ignore_eos else tuple(dict.fromkeys((*ends, *asked)))


def _biases(body: Generation, limits: Limits) -> tuple[tuple[int, float], ...]:
    biases = {int(token): float(bias) for token, bias in (body.logit_bias or {}).items()}
    if biases and max(biases) >= limits.vocabulary:
        raise invalid("logit_bias", f"token ids are 0 to {limits.vocabulary - 1}")
    return tuple(sorted(biases.items()))


def sampling_of(body: Generation, limits: Limits, defaults: Defaults, seed: int) -> Sampling:
    """What the body asks for, the model's own defaults where it says nothing. Raises RequestError."""
    return Sampling(
        temperature=_given(body.temperature, _temperature(body, defaults)),
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


def _temperature(body: Generation, defaults: Defaults) -> float:
    """Where the body names none: a cut (`top_p`, `top_k`, `min_p`) asks for sampling, also of a greedy model."""
    cuts = (body.top_p, body.top_k, body.min_p)
    return 0.0 if defaults.greedy and all(cut is None for cut in cuts) else defaults.temperature


def _given(value: float | None, default: float) -> float:
    return default if value is None else float(value)


@dataclass(frozen=True)
class Fresh:
    """What a request gets where its body brings none: its id, its seed (64 bits), the model's sampling defaults."""

    identity: str
    seed: int
    defaults: Defaults = NO_DEFAULTS


def salt_of(body: Generation) -> bytes:
    """Prefixes are shared within one salt: the gateway's, and what the body adds to it."""
    salt = bytes.fromhex((body.headrace or RequestHints()).salt)
    if body.cache_salt is None:
        return salt
    return hashlib.sha256(
        b"headrace.salt.v1" + len(salt).to_bytes(8, "little") + salt + body.cache_salt.encode()
    ).digest()


def submits(
    body: Generation, prompts: Sequence[Sequence[int]], limits: Limits, *, eos_ids: tuple[int, ...], fresh: Fresh
) -> list[Submit]:
    """The choices of each prompt in turn; all but a prompt's first wait for the first one's prefill.

    With a seed, a prompt gets the same choices in any company. Raises RequestError.
    """
    hints, count = body.headrace or RequestHints(), body.choices
    identity, seed = hints.id or fresh.identity, fresh.seed if body.seed is None else body.seed
    sampling = sampling_of(body, limits, fresh.defaults, seed)
    stop_ids, salt = _stop_ids(body, eos_ids, limits), salt_of(body)
    names = [identity] if len(prompts) * count == 1 else [f"{identity}:{i}" for i in range(len(prompts) * count)]
    made: list[Submit] = []
    for tokens in prompts:
        first, data = len(made), token_bytes(tokens)
        room = min(limits.context, limits.pool) - len(tokens)
        for choice in range(count):
            draws = child_seed(seed, choice if body.seed is not None else len(made))
            made.append(
                Submit(
                    id=names[len(made)],
                    tokens=data,
                    sampling=msgspec.structs.replace(
                        sampling, seed=draws, prompt_logprobs=body.top if body.echoes and not choice else None
                    ),
                    max_tokens=_output_limit(body, room),
                    stop_ids=stop_ids,
                    priority=hints.priority,
                    ttft_ms=hints.ttft_ms,
                    tpot_ms=hints.tpot_ms,
                    left_ms=hints.left_ms,
                    salt=salt,
                    holder=hints.holder,
                    after=names[first] if choice else "",
                )
            )
    return made


def _output_limit(body: Generation, room: int) -> int:
    """Tokens: a request that only echoes its prompt has one drawn, which nobody sees."""
    limit = body.limit[1]
    return room if limit is None else max(1, min(limit, room))
