"""`headrace plan`: memory fit and communication plan of Models in files, without a cluster."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from headrace.api.common import ApiType, NamedRef
    from headrace.api.model import Model
    from headrace.cli.documents import Document, Documents
    from headrace.cli.plan_report import ModelPlan
    from headrace_wire.shape import ModelShape

_T = TypeVar("_T", bound="ApiType")


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "plan",
        help="memory fit and communication plan of Models in files, without a cluster",
        description="Exit status: 0 every Model fits, 1 one does not, 2 the input is at fault.",
    )
    parser.add_argument(
        "-f",
        "--filename",
        action="append",
        required=True,
        metavar="FILE",
        help="YAML with Models and what they refer to; may be repeated; - reads stdin",
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="DIR",
        help="model folder whose config.json gives the shape of pvc and hf sources",
    )
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="form of the output")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the plan of every Model."""
    from headrace.api.model import Model
    from headrace.cli.documents import read
    from headrace.cli.main import UsageError
    from headrace.cli.plan_report import as_json, as_text

    documents = read(arguments.filename)
    plans = [_plan(documents, document, model, arguments.config) for document, model in documents.of(Model)]
    if not plans:
        raise UsageError(f"{', '.join(arguments.filename)}: no Model of group headrace.dev")
    print(as_json(plans) if arguments.output == "json" else as_text(plans))
    return 1 if any(plan.memory.fits is False for plan in plans) else 0


def _plan(documents: Documents, document: Document, model: Model, config: Path | None) -> ModelPlan:
    from headrace.api.profile import ParallelismProfile
    from headrace.api.schedule import problems
    from headrace.api.slo import ServiceLevelObjective
    from headrace.cli.main import UsageError
    from headrace.cli.plan_report import ModelPlan
    from headrace.planning import communication, memory
    from headrace_wire.memory import ParallelismError

    wrong = [f"{document.place}: {one}" for one in problems(model.spec.scaling.schedules, model.spec.scaling.override)]
    if wrong:
        raise UsageError("\n".join(wrong))
    shape, origin = _shape(document, model, config)
    profile = _find(documents, document, ParallelismProfile, ("parallelismRef", model.spec.parallelism_ref))
    slo = _find(documents, document, ServiceLevelObjective, ("serviceLevelRef", model.spec.service_level_ref))
    spec = profile.spec if profile else None
    try:
        fit = memory.fit_model(model.spec, spec, shape)
        links = communication.plan_model(model.spec, spec, shape)
    except ParallelismError as error:
        raise UsageError(f"{document.place}: spec.parallelismRef: {error}") from error
    return ModelPlan(model=model, profile=profile, slo=slo, shape=shape, origin=origin, memory=fit, links=links)


def _find(documents: Documents, document: Document, kind: type[_T], field: tuple[str, NamedRef | None]) -> _T | None:
    """What the Model's field (its name, and what it says) refers to. Raises UsageError where no file has it."""
    from headrace.cli.main import UsageError

    name, reference = field
    if reference is None:
        return None
    found = documents.find(kind, reference.name, document.namespace)
    if found is None:
        raise UsageError(
            f"{document.place}: spec.{name}.name: {kind.__name__} {reference.name} of namespace "
            f"{document.namespace} is in none of the files: give its file with -f, too"
        )
    return found


def _shape(document: Document, model: Model, config: Path | None) -> tuple[ModelShape, str]:
    """The model's shape and where it was read."""
    from headrace.cli.main import UsageError
    from headrace_wire.shape import builtin_shape

    source = model.spec.source
    if source.scheme == "builtin":
        return builtin_shape(source.uri.removeprefix("builtin://")), "built in"
    if config is None:
        raise UsageError(
            f"{document.place}: the shape of {source.uri} is not known here: give --config DIR, a folder with its "
            "config.json"
        )
    return _read_config(config / "config.json"), str(config / "config.json")


def _read_config(path: Path) -> ModelShape:
    import json

    from headrace.cli.main import UsageError
    from headrace_wire.shape import ShapeError, read_shape

    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(config, dict):
            raise UsageError(f"{path}: is no JSON object")
        return read_shape(config)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise UsageError(f"{path}: is not JSON: {error}") from error
    except ShapeError as error:
        raise UsageError(f"{path.parent}: {error}") from error
