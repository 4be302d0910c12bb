"""What cannot fit is refused by its bytes, before the engine tokenizes it."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.testing.tiny_tokenizer import VOCABULARY, tiny_bundle
from headrace_engine.api.defaults import NO_DEFAULTS
from headrace_engine.api.parts import Parts, Threads
from headrace_engine.api.prepare import prepare
from headrace_engine.api.submit import Limits
from headrace_wire.chat import ChatTokenizer
from headrace_wire.reasons import Reason, RequestError


class Counted(ChatTokenizer):
    """Remembers how long the texts were that it encoded, in characters."""

    def __init__(self) -> None:
        super().__init__(tiny_bundle())
        self.encoded: list[int] = []

    def _encode(self, text: str, *, special: bool, param: str) -> list[int]:
        self.encoded.append(len(text))
        return super()._encode(text, special=special, param=param)


def parts_of(tokenizer: ChatTokenizer, limits: Limits, threads: ThreadPoolExecutor) -> Parts:
    """As much of an engine as reading a body needs."""
    parts = SimpleNamespace(
        tokenizer=tokenizer,
        threads=Threads(threads, threads),
        defaults=NO_DEFAULTS,
        limits=lambda: limits,
        check_model=lambda model: None,
    )
    return cast(Parts, parts)


BODIES: dict[str, tuple[dict[str, Any], str]] = {
    "chat": ({"messages": [{"role": "user", "content": "x" * 2_000_000}]}, "messages"),
    "plain": ({"prompt": "x" * 2_000_000}, "prompt"),
    "one of several": ({"prompt": ["x", "x" * 2_000_000]}, "prompt"),
}
LIMITS = {"context": Limits(2048, 10**6, VOCABULARY), "pool": Limits(10**6, 2048, VOCABULARY)}


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
@pytest.mark.parametrize(("fields", "param"), BODIES.values(), ids=BODIES)
def test_a_prompt_that_cannot_fit_is_not_tokenized(limits: Limits, fields: dict[str, Any], param: str) -> None:
    tokenizer = Counted()
    with ThreadPoolExecutor(1) as threads:
        parts, data = parts_of(tokenizer, limits, threads), json.dumps({"model": "m", **fields}).encode()
        with pytest.raises(RequestError) as caught:
            asyncio.run(prepare(parts, data, chat=param == "messages"))
    assert (caught.value.reason, caught.value.param) == (Reason.CONTEXT_EXCEEDED, param)
    assert "2000" in caught.value.message and "only 2048 tokens fit" in caught.value.message
    assert tokenizer.encoded == []


def test_a_prompt_that_fits_exactly_is_taken() -> None:
    tokenizer = Counted()
    with ThreadPoolExecutor(1) as threads:
        data = json.dumps({"model": "m", "prompt": "x" * 2047}).encode()
        ready = asyncio.run(prepare(parts_of(tokenizer, LIMITS["context"], threads), data, chat=False))
    assert len(ready.prompts[0]) == 2047 and tokenizer.encoded == [2047]
