"""Memory fit: arithmetic against published models and shared vectors, verdicts, and what must hold for every shape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.api.model import Accelerator, ModelSpec
from headrace.api.model_status import MemoryStatus
from headrace.api.pod import PodSettings
from headrace.api.profile import ProfileSpec
from headrace.planning.memory import MemoryFit, Room, Verdict, fit, fit_model
from headrace_wire.memory import Load, ParallelismError, budget_bytes, check_degrees, footprints, fullest, stage_layers
from headrace_wire.shape import ModelShape, builtin_shape, read_shape

ROOT = Path(__file__).parents[2]
CASES: list[dict[str, Any]] = json.loads((ROOT / "tests/vectors/memory.json").read_text())["cases"]
SHAPES = {case["name"].split(",")[0]: msgspec.convert(case["shape"], ModelShape) for case in CASES}
LLAMA_8B = SHAPES["llama 8b on one accelerator"]
LLAMA_70B = msgspec.convert(CASES[-1]["shape"], ModelShape)
GI = 2**30


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_shared_vectors(case: dict[str, Any]) -> None:
    """The engine's pool is tested with the same file."""
    shape, load = msgspec.convert(case["shape"], ModelShape), msgspec.convert(case["load"], Load)
    found = fit(shape, load, Room(capacity=case["capacity"], memory_percent=case["memory_percent"]))
    part = found.footprint
    assert case["expect"] == {
        "weights": part.weights,
        "kv_per_token": part.kv_per_token,
        "runtime": part.runtime,
        "step": part.step,
        "pages": found.pool_pages,
    }


@pytest.mark.parametrize(
    ("shape", "parameters", "kv_bytes"),
    [
        (LLAMA_8B, 8_030_261_248, 128 * 1024),
        (LLAMA_70B, 70_553_706_496, 320 * 1024),
        (SHAPES["qwen3 0.6b"], 596_049_920, 112 * 1024),
    ],
    ids=["llama 8b", "llama 70b", "qwen3 0.6b"],
)
def test_published_sizes(shape: ModelShape, parameters: int, kv_bytes: int) -> None:
    part = footprints(shape, Load())[0]
    assert (shape.parameters, part.weights, part.kv_per_token) == (parameters, 2 * parameters, kv_bytes)


def test_builtin_shape_is_that_of_the_shipped_model() -> None:
    config = json.loads((ROOT / "engine/headrace_engine/demo/model/config.json").read_text())
    assert builtin_shape("demo") == read_shape(config)


def test_unknown_builtin_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="builtin://big is unknown; known: demo"):
        builtin_shape("big")


def demo_fit(**room: Any) -> MemoryFit:
    load = Load(max_sequences=2, max_batch_tokens=256)
    return fit(builtin_shape("demo"), load, Room(**{"capacity": GI, "max_tokens": 2048, **room}))


VERDICTS = {
    "fits": (
        demo_fit(),
        Verdict.FITS,
        "weights 4.1Mi + overhead 513.6Mi leave 403.9Mi of 921.6Mi (90 % of 1Gi) for KV: 134 requests of 2048 tokens "
        "at one time",
    ),
    "no limit": (
        demo_fit(capacity=None),
        Verdict.CAPACITY_UNKNOWN,
        "weights 4.1Mi + overhead 513.6Mi, and one request of 2048 tokens needs 3Mi; "
        "spec.pod.resources.limits.memory is not set, so nothing bounds the engine: set it to at least 579Mi",
    ),
    "weights": (
        demo_fit(capacity=512 * 2**20),
        Verdict.WEIGHTS_TOO_LARGE,
        "weights 4.1Mi + overhead 513.6Mi need 517.7Mi, which leaves no page of KV in 460.8Mi (90 % of 512Mi): "
        "raise spec.pod.resources.limits.memory to at least 579Mi, or lower spec.engine.maxBatchTokens or "
        "spec.engine.maxSequences (they make the overhead), or serve a smaller model",
    ),
    "context": (
        demo_fit(capacity=576 * 2**20),
        Verdict.CONTEXT_TOO_LARGE,
        "weights 4.1Mi + overhead 513.6Mi leave 672Ki of 518.4Mi (90 % of 576Mi) for KV, but one request of 2048 "
        "tokens needs 3Mi; at most 384 tokens fit: lower spec.context.maxTokens to that, or raise "
        "spec.pod.resources.limits.memory to at least 579Mi",
    ),
    "beyond the model": (
        demo_fit(max_tokens=4096),
        Verdict.CONTEXT_BEYOND_MODEL,
        "spec.context.maxTokens 4096 exceeds the 2048 tokens that the model was trained for: lower it to that, or "
        "leave it out",
    ),
}


@pytest.mark.parametrize(("found", "verdict", "message"), VERDICTS.values(), ids=VERDICTS)
def test_verdict_is_said_with_numbers(found: MemoryFit, verdict: Verdict, message: str) -> None:
    assert found.verdict is verdict
    assert found.message == message
    assert found.fits is {Verdict.FITS: True, Verdict.CAPACITY_UNKNOWN: None}.get(verdict, False)


def test_status_shows_the_arithmetic() -> None:
    status = demo_fit().as_status()
    assert status.model_dump(by_alias=True) == {
        "capacity": "1Gi",
        "weights": "4.1Mi",
        "kvPerToken": "1.5Ki",
        "overhead": "513.6Mi",
        "kvPool": "403.9Mi",
        "fullLengthSequences": 134,
    }


def spec(**fields: Any) -> ModelSpec:
    return ModelSpec.model_validate({"source": {"uri": "builtin://demo"}, **fields})


def test_cpu_capacity_is_the_memory_limit() -> None:
    found = fit_model(spec(pod={"resources": {"limits": {"memory": "1.5Gi"}}}), None, builtin_shape("demo"))
    assert found.capacity == 3 * GI // 2


def test_accelerator_capacity_and_profile_count() -> None:
    model = spec(accelerator={"memory": "80Gi"}, context={"maxTokens": 8192}, engine={"memoryPercent": 50})
    found = fit_model(model, ProfileSpec(tensor=2), LLAMA_8B)
    assert (found.capacity, found.memory_percent, found.max_tokens) == (80 * GI, 50, 8192)
    assert found.footprint.weights < LLAMA_8B.parameters * 2 * 0.51


@pytest.mark.parametrize(
    ("tensor", "pipeline", "message"),
    [
        (3, 1, "tensor 3 does not divide the model's 64 attention heads"),
        (1, 81, "pipeline 81 exceeds the model's 80 layers"),
    ],
    ids=["heads", "layers"],
)
def test_what_cannot_be_split_is_refused(tensor: int, pipeline: int, message: str) -> None:
    with pytest.raises(ParallelismError, match=message):
        fit(LLAMA_70B, Load(tensor=tensor, pipeline=pipeline), Room(capacity=GI))


def test_kv_heads_that_neither_split_nor_repeat_are_refused() -> None:
    with pytest.raises(ParallelismError, match="tensor 4 and the model's 6 KV heads do not divide each other"):
        check_degrees(msgspec.structs.replace(LLAMA_8B, heads=24, kv_heads=6), 4, 1)


DEGREES = st.sampled_from([1, 2, 4, 8])
CAPACITIES = st.integers(0, 200 * GI)


@given(layers=st.integers(1, 128), pipeline=st.integers(1, 64))
def test_stages_hold_every_layer_evenly(layers: int, pipeline: int) -> None:
    assume(pipeline <= layers)
    stages = stage_layers(layers, pipeline)
    assert (len(stages), sum(stages)) == (pipeline, layers)
    assert max(stages) - min(stages) <= 1


@given(tensor=DEGREES, pipeline=st.integers(1, 32))
def test_ranks_hold_the_whole_model_at_least_once(tensor: int, pipeline: int) -> None:
    parts = footprints(LLAMA_8B, Load(tensor=tensor, pipeline=pipeline))
    assert sum(part.weights for part in parts) * tensor >= LLAMA_8B.parameters * 2
    assert sum(part.kv_per_token for part in parts) * tensor >= 128 * 1024


@given(tensor=st.sampled_from([1, 2, 4, 8, 16, 32]))
def test_kv_heads_are_never_less_than_one(tensor: int) -> None:
    part = footprints(LLAMA_8B, Load(tensor=tensor))[0]
    assert part.kv_per_token == 128 * 1024 // min(tensor, 8)


@given(capacity=CAPACITIES, tensor=DEGREES, pipeline=st.sampled_from([1, 2, 4]))
def test_what_is_held_stays_within_the_budget(capacity: int, tensor: int, pipeline: int) -> None:
    found = fit(LLAMA_8B, Load(tensor=tensor, pipeline=pipeline, accelerator=True), Room(capacity=capacity))
    part = found.footprint
    if found.pool_pages:
        assert part.weights + part.overhead + found.pool <= budget_bytes(capacity, 90)
    assert found.full_length_sequences * found.max_tokens <= found.pool_pages * 64


@given(capacity=CAPACITIES, more=st.integers(0, 50 * GI))
def test_more_memory_never_fits_less(capacity: int, more: int) -> None:
    load = Load(accelerator=True)
    small, large = (fit(LLAMA_8B, load, Room(capacity=size)) for size in (capacity, capacity + more))
    assert small.pool_pages <= large.pool_pages
    assert not (small.fits and not large.fits)


@given(
    tokens=st.integers(2, 8192),
    pipeline=st.sampled_from([1, 2, 3, 8]),
    percent=st.integers(10, 95),
    batch=st.integers(64, 65536),
)
def test_the_least_memory_that_a_message_names_is_enough_and_no_less_is(
    tokens: int, pipeline: int, percent: int, batch: int
) -> None:
    load = Load(pipeline=pipeline, accelerator=True, max_batch_tokens=batch)

    def on(capacity: int | None) -> MemoryFit:
        return fit(LLAMA_8B, load, Room(capacity=capacity, memory_percent=percent, max_tokens=tokens))

    needed = on(None).needed
    assert on(needed).verdict is Verdict.FITS and on(needed).needed == needed
    assert on(needed - 1).fits is False


@given(capacity=CAPACITIES, pipeline=st.sampled_from([2, 3, 5, 8]))
def test_the_fullest_stage_bounds_the_pool(capacity: int, pipeline: int) -> None:
    load = Load(pipeline=pipeline, accelerator=True)
    chosen = fullest(LLAMA_8B, load, capacity)
    assert chosen.pages(capacity) == min(part.pages(capacity) for part in footprints(LLAMA_8B, load))


ABSURD: dict[str, dict[str, Any]] = {  # as an older installation may have stored it
    "pod": {"pod": PodSettings.model_construct(resources={"limits": {"memory": "1e99"}})},
    "accelerator": {"accelerator": Accelerator.model_construct(resource="nvidia.com/gpu", memory="999999999999Ti")},
}


@pytest.mark.parametrize("absurd", ABSURD.values(), ids=ABSURD)
def test_absurd_memory_makes_a_status_that_can_be_written(absurd: dict[str, Any]) -> None:
    made = ModelSpec.model_validate({"source": {"uri": "builtin://demo"}}).model_copy(update=absurd)
    status = fit_model(made, None, builtin_shape("demo")).as_status()
    assert status.full_length_sequences == 2**31 - 1
    assert MemoryStatus.model_validate(status.model_dump()) == status
    assert len(status.capacity) < 32 and len(status.kv_pool) < 32
