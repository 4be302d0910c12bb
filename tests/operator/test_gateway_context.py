"""The context length that bounds a request: from the Model's status before an engine runs, made good later."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.api.model import Model
from headrace.gateway.call import context_of
from headrace.testing.fake_engine import FakeEngine
from headrace.testing.fake_world import (
    FakeGateway,
    eventually,
    make_model,
    make_tenant,
    make_world,
    serving,
    set_engines,
)
from headrace_wire.shape import BUILTIN_SHAPES

CHAT = "/v1/chat/completions"
AUTH = {"authorization": "Bearer key"}
DEMO = BUILTIN_SHAPES["demo"].max_positions
OTHER = "pvc://models/other"
SHAPE = {
    "architecture": "LlamaForCausalLM", "layers": 2, "hidden": 64, "heads": 4, "kvHeads": 2, "headDim": 16,
    "intermediate": 128, "vocab": 512, "maxPositions": 512, "dtype": "bfloat16",
}  # fmt: skip


def model(status: dict[str, Any] | None = None, *, uri: str = OTHER, generation: int = 3, **spec: Any) -> Model:
    meta = {"name": "m", "namespace": "team-a", "uid": "u", "generation": generation}
    full = {"source": {"uri": uri}, **spec}
    return Model.model_validate({"metadata": meta, "spec": full, "status": status or {}})


KEPT = {"observedGeneration": 3, "engine": {"maxTokens": 256}, "source": {"uri": OTHER, "shape": SHAPE}}
KNOWN = {
    "an engine reports": (model(KEPT), 1024, 1024),
    "an engine reports more than the Model allows": (model(context={"maxTokens": 100}), 1024, 100),
    "the last engines reported": (model(KEPT), None, 256),
    "the last engines ran another spec": (model({**KEPT, "observedGeneration": 2}), None, 512),
    "only the shape is kept": (model({**KEPT, "engine": None}), None, 512),
    "the shape is of another source": (model({**KEPT, "observedGeneration": 2}, uri="pvc://models/new"), None, None),
    "a built-in model": (model(uri="builtin://demo"), None, DEMO),
    "a shorter context is asked for": (model(uri="builtin://demo", context={"maxTokens": 64}), None, 64),
    "nothing is known": (model(), None, None),
}


@pytest.mark.parametrize(("made", "reported", "expected"), KNOWN.values(), ids=KNOWN)
def test_the_context_is_the_least_that_is_known(made: Model, reported: int | None, expected: int | None) -> None:
    assert context_of(made, reported) == expected


async def post(gateway: FakeGateway, **fields: Any) -> Any:
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], **fields}
    return await gateway.http.post(gateway.url + CHAT, json=body, headers=AUTH)


async def waits(gateway: FakeGateway) -> bool:
    return (await gateway.service_class()).queued == 1


def test_a_limit_above_the_context_is_cut_at_zero_replicas_too() -> None:
    async def main() -> None:
        world = make_world([], [make_tenant(quota={"tokensPerMinute": 2 * DEMO})])
        async with FakeEngine(tokens_per_s=2000.0, max_tokens=DEMO) as engine, serving(world) as gateway:
            asked = asyncio.create_task(post(gateway, max_tokens=1_000_000))
            await eventually(lambda: waits(gateway))
            (tenant,) = (await gateway.state()).tenants
            assert tenant.tokens_last_minute <= DEMO + 100, "no more is reserved than can come of it"
            set_engines(world, engine)
            answer = await asked
            assert answer.status_code == 200
            prompt = answer.json()["usage"]["prompt_tokens"]
            assert answer.headers["x-headrace-max-tokens"] == str(DEMO - prompt)
            assert engine.seen[0].raw["max_tokens"] == DEMO - prompt

    asyncio.run(main())


@pytest.mark.parametrize("tokenizer", ["known", "unknown"])
def test_a_context_that_only_the_first_engine_tells_is_kept_to(tokenizer: str) -> None:
    async def main() -> None:
        source = {"source": {"uri": OTHER}}
        world = make_world([make_model(**source)])
        async with FakeEngine(tokens_per_s=2000.0, max_tokens=300) as engine, serving(world) as gateway:
            if tokenizer == "known":  # from a replica that is gone
                set_engines(world, engine)
                assert (await post(gateway, max_tokens=2)).status_code == 200
                set_engines(world)
            asked = asyncio.create_task(post(gateway, max_tokens=5000))
            long = asyncio.create_task(post(gateway, messages=[{"role": "user", "content": "hello " * 400}]))
            await eventually(lambda: _queued(gateway, 2))
            set_engines(world, engine)
            answer, refused = await asyncio.gather(asked, long)
            assert answer.status_code == 200
            assert engine.seen[-1].raw["max_tokens"] == 300 - answer.json()["usage"]["prompt_tokens"]
            assert refused.status_code == 400 and refused.json()["error"]["code"] == "context_length_exceeded"
            assert len(engine.seen) == (2 if tokenizer == "known" else 1), "what cannot fit is not sent"
            await eventually(gateway.idle)

    asyncio.run(main())


async def _queued(gateway: FakeGateway, count: int) -> bool:
    return (await gateway.service_class()).queued == count
