"""Objects and files -> types: quantities, URIs, unknown fields."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from headrace.api.common import camel
from headrace.api.model import Model, PodSettings, Source
from headrace.api.quantities import byte_count, resource_amount, seconds, show_bytes
from headrace.api.slo import BUILTIN_SLO, ServiceClass


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("500m", "0.5"),
        ("2", "2"),
        (3, "3"),
        ("1.5Gi", str(3 * 2**29)),
        (".5", "0.5"),
        ("1e9", "1000000000"),
        ("1E-3", "0.001"),
        ("2E", str(2 * 10**18)),
        ("1Ei", str(2**60)),
        ("100u", "0.0001"),
    ],
    ids=str,
)
def test_container_resources_are_read_as_kubernetes_does(text: str | int, amount: str) -> None:
    assert resource_amount(text) == Decimal(amount)


@pytest.mark.parametrize("text", ["", "1 Gi", "1x", "-1", "Gi", "1e", "1mi"])
def test_what_is_no_resource_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a quantity"):
        resource_amount(text)


@pytest.mark.parametrize(
    ("limits", "memory", "cpu"),
    [({}, None, None), ({"memory": "1Gi", "cpu": "500m"}, 2**30, 0.5), ({"memory": 2**21, "cpu": 2}, 2**21, 2.0)],
    ids=["none", "text", "numbers"],
)
def test_limits_of_a_pod(limits: dict[str, str | int], memory: int | None, cpu: float | None) -> None:
    pod = PodSettings.model_validate({"resources": {"limits": limits}} if limits else {})
    assert (pod.memory_limit(), pod.cpu_limit()) == (memory, cpu)


@pytest.mark.parametrize(
    ("uri", "scheme", "claim"),
    [
        ("builtin://demo", "builtin", None),
        ("pvc://models/llama/8b", "pvc", "models"),
        ("hf://org/name@main", "hf", None),
    ],
)
def test_source_knows_its_scheme_and_claim(uri: str, scheme: str, claim: str | None) -> None:
    source = Source(uri=uri)
    assert (source.scheme, source.claim) == (scheme, claim)


@pytest.mark.parametrize(
    "uri",
    ["demo", "s3://a/b", "builtin://x", "pvc://a", "pvc://a/../b", "pvc://a//b", "hf://a", "hf://a/b/c", "hf://a/b@"],
)
def test_source_refuses_what_the_api_server_refuses(uri: str) -> None:
    with pytest.raises(ValidationError, match="uri"):
        Source(uri=uri)


def test_objects_read_from_the_api_ignore_unknown_fields() -> None:
    model = Model.model_validate(
        {
            "metadata": {"name": "x", "resourceVersion": "7", "labels": {"a": "b"}},
            "spec": {"source": {"uri": "builtin://demo"}, "comesLater": {"a": 1}},
            "status": {"comesLater": 1},
        }
    )
    assert model.metadata.resource_version == "7"
    assert model.spec.scaling.down_after_s == 300
    assert model.status.observed_generation == -1


@pytest.mark.parametrize("zero", ["0s", "0ms", "00m"])
def test_targets_are_more_than_zero(zero: str) -> None:
    with pytest.raises(ValidationError, match="more than 0"):
        ServiceClass.model_validate({"name": "a", "ttft": zero, "tpot": "1s", "maxQueueAge": "1s"})


def test_the_builtin_objective_is_open_to_all() -> None:
    assert [row.name for row in BUILTIN_SLO.classes] == ["default"]


@pytest.mark.parametrize(
    ("field", "name"),
    [("max_queue_age", "maxQueueAge"), ("e2e", "e2e"), ("sha256", "sha256"), ("kv_per_token", "kvPerToken")],
)
def test_names_in_yaml(field: str, name: str) -> None:
    assert camel(field) == name


@given(st.integers(0, 10**9), st.sampled_from(["ms", "s", "m", "h", "us", "ns"]))
def test_every_duration_is_read(count: int, unit: str) -> None:
    scale = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}[unit]
    assert seconds(f"{count}{unit}") == pytest.approx(count * scale)


@given(st.integers(0, 2**50))
def test_shown_bytes_are_near_the_count(count: int) -> None:
    shown = show_bytes(count)
    number = shown.rstrip("KMGTi")
    unit = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}[shown[len(number) :]]
    assert float(number) * unit == pytest.approx(count, abs=0.051 * unit)


@given(st.integers(0, 10**12), st.sampled_from(["", "Ki", "Mi", "Gi", "k", "M", "G"]))
def test_byte_counts_agree_with_container_resources(count: int, unit: str) -> None:
    assert byte_count(f"{count}{unit}") == resource_amount(f"{count}{unit}")
