"""The CRDs follow from the types: structure, size, and the committed files."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel, Field

from headrace.api.crd import KINDS, Kind, crd, schema_of
from headrace.api.structural import SchemaError, structural
from headrace.cli import crds as command

ROOT = Path(__file__).parents[2]
KIND_IDS = [kind.name for kind in KINDS]
LIMIT = 100 * 1024  # bytes; kubectl's client-side apply keeps a second copy in an annotation of at most 256 KiB


def nodes(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from nodes(schema[key], f"{path}[]")


def test_committed_files_are_what_the_types_say() -> None:
    stale = [
        str(path)
        for path, text in command.rendered().items()
        if not (ROOT / path).is_file() or (ROOT / path).read_text(encoding="utf-8") != text
    ]
    assert not stale, "run `make crds`"


@pytest.mark.parametrize("folder", [command.OUTPUT, command.CHART], ids=str)
def test_nothing_else_lies_among_the_generated_files(folder: Path) -> None:
    expected = {path.name for path in command.rendered() if path.parent == folder}
    assert {path.name for path in (ROOT / folder).iterdir()} == expected


@pytest.mark.parametrize("kind", KINDS, ids=KIND_IDS)
def test_crd_is_small_enough_for_client_side_apply(kind: Kind) -> None:
    assert len(json.dumps(crd(kind))) < LIMIT


@pytest.mark.parametrize("kind", KINDS, ids=KIND_IDS)
def test_schema_is_structural(kind: Kind) -> None:
    for path, node in nodes(schema_of(kind), kind.name):
        if "x-kubernetes-int-or-string" in node:
            continue
        assert node["type"] in {"object", "array", "string", "integer", "boolean"}, path
        forbidden = {"$ref", "anyOf", "title", "const", "exclusiveMinimum", "exclusiveMaximum", "x-no-default"}
        assert not forbidden & node.keys(), path
        assert not {"properties", "additionalProperties"} <= node.keys(), path


@pytest.mark.parametrize("kind", KINDS, ids=KIND_IDS)
def test_every_field_is_described(kind: Kind) -> None:
    for path, node in nodes(schema_of(kind), kind.name):
        if not path.endswith("[]") and ".metadata" not in path:
            assert node.get("description", "").strip().endswith("."), path


@pytest.mark.parametrize("kind", KINDS, ids=KIND_IDS)
def test_an_empty_default_is_already_filled(kind: Kind) -> None:
    """The API server checks rules on defaults, so a defaulted object carries its own fields' defaults."""
    for path, node in nodes(schema_of(kind)["properties"]["spec"], "spec"):
        if isinstance(node.get("default"), dict):
            inner = {name for name, child in node["properties"].items() if "default" in child}
            assert set(node["default"]) == inner, path


@pytest.mark.parametrize("kind", KINDS, ids=KIND_IDS)
def test_python_and_schema_agree_on_defaults(kind: Kind) -> None:
    """What the API server fills in is what Python assumes of an object that lacks it."""
    spec_type = kind.type.model_fields["spec"].annotation
    assert isinstance(spec_type, type) and issubclass(spec_type, BaseModel)
    schema = schema_of(kind)["properties"]["spec"]
    required: dict[str, Any] = {"source": {"uri": "builtin://demo"}} if kind.name == "Model" else {}
    if kind.name == "ServiceLevelObjective":
        required = {"classes": [{"name": "a", "ttft": "1s", "tpot": "1s", "maxQueueAge": "1s"}]}
    filled = {name: child["default"] for name, child in schema["properties"].items() if "default" in child}
    assert spec_type.model_validate({**filled, **required}) == spec_type.model_validate(required)


class Inner(BaseModel):
    ratio: float = 0.5


class Either(BaseModel):
    value: int | str


class Below(BaseModel):
    value: int = Field(gt=0)


class Open(BaseModel):
    value: dict[str, Any]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Inner, "Inner.ratio: is a float"),
        (Either, "Either.value: is a union of several types"),
        (Below, "Below.value: has an exclusive bound"),
        (Open, "Open.value: is an object of unknown content"),
    ],
    ids=["float", "union", "exclusive bound", "open object"],
)
def test_what_a_crd_cannot_say_is_refused(kind: type[BaseModel], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        structural(kind, defaults=True)


@pytest.fixture
def generated(tmp_path: Path) -> argparse.Namespace:
    arguments = argparse.Namespace(output=tmp_path / "crds", chart=tmp_path / "templates", check=False)
    assert command.run(arguments) == 0
    arguments.check = True
    return arguments


def test_check_passes_on_fresh_files(generated: argparse.Namespace) -> None:
    assert command.run(generated) == 0


def test_check_names_what_is_stale_and_what_is_missing(
    generated: argparse.Namespace, capsys: pytest.CaptureFixture[str]
) -> None:
    (generated.output / "models.yaml").unlink()
    tenants = generated.chart / "tenants.yaml"
    tenants.write_text(tenants.read_text().replace("    plural: tenants\n", ""))
    assert command.run(generated) == 1
    said = capsys.readouterr().err
    assert f"{generated.output / 'models.yaml'}: missing" in said
    assert f"{tenants}: stale, +1 -0 lines, first: +    plural: tenants" in said
    assert "2 of 9 generated files are stale: run `make crds`" in said


@pytest.mark.parametrize("kind", KINDS, ids=KIND_IDS)
def test_chart_keeps_the_definitions_and_has_no_template_syntax(kind: Kind) -> None:
    text = (ROOT / command.CHART / f"{kind.plural}.yaml").read_text()
    assert "{{" not in text
    document = yaml.safe_load(text)
    assert document["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert document == crd(kind)
