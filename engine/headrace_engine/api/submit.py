"""A checked body and its prompt tokens to the Submits of its choices. Pure."""

from __future__ import annotations

import array
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

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


def submits(
    body: Generation, tokens: Sequence[int], limits: Limits, *, eos_ids: tuple[int, ...], fresh: tuple[str, int]
) -> list[Submit]:
    """One Submit a choice. `fresh` is the id and the seed of a request that brings none. Raises RequestError."""
    hints = body.headrace or RequestHints()
    identity, seed = hints.id or fresh[0], fresh[1] if body.seed is None else body.seed
    room = min(limits.context, limits.pool) - len(tokens)
    limit, choices = body.limit[1], body.n or 1
    stop_ids, data = _stop_ids(body, eos_ids, limits), token_bytes(tokens)
    temperature = 1.0 if body.temperature is None else float(body.temperature)
    return [
        Submit(
            id=identity if choices == 1 else f"{identity}:{index}",
            tokens=data,
            sampling=Sampling(
                temperature=temperature,
                top_p=1.0 if body.top_p is None else float(body.top_p),
                top_k=min(max(body.top_k or 0, 0), limits.vocabulary),
                seed=child_seed(seed, index),
            ),
            max_tokens=room if limit is None else min(limit, room),
            stop_ids=stop_ids,
            priority=hints.priority,
            ttft_ms=hints.ttft_ms,
            tpot_ms=hints.tpot_ms,
            left_ms=hints.left_ms,
            salt=bytes.fromhex(hints.salt),
            holder=hints.holder,
        )
        for index in range(choices)
    ]
