"""`headrace explain model NAME`: why a Model is as it is, in words."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.cli import explain_tenant

if TYPE_CHECKING:
    from headrace.api.common import ApiType

Object = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Found:
    """The Model's object, and that of its objective if there is one."""

    model: Object
    slo: Object | None


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "explain",
        help="why a Model is as it is, or a Tenant's requests are refused",
        description="Of a Model: conditions, replicas, memory arithmetic, service level and last scaling decisions "
        "with every candidate and guard, and what would change the number of replicas. Of a Tenant: keys, quotas and "
        "what is used of them, the Models that it may call, and why its requests are refused.",
    )
    kinds = parser.add_subparsers(title="kinds", metavar="KIND", required=True)
    model = kinds.add_parser("model", aliases=["models", "mdl"], help="a Model")
    model.add_argument("name", type=explain_tenant.named, metavar="NAME", help="name of the Model")
    model.add_argument("-n", "--namespace", default=None, help="its namespace (default: default)")
    model.add_argument(
        "-f",
        "--file",
        metavar="FILE",
        help="read the object from FILE (JSON or YAML, as of `kubectl get -o json`, also a list with its "
        "ServiceLevelObjective) instead of the cluster; - reads standard input",
    )
    model.set_defaults(run=run)
    explain_tenant.register(kinds)


def run(arguments: argparse.Namespace) -> int:
    """Print the explanation."""
    import time

    from headrace.api.model import Model
    from headrace.api.slo import ServiceLevelObjective
    from headrace.cli.explain_report import report

    found = _from_file(arguments) if arguments.file is not None else _from_cluster(arguments)
    model = parse(Model, found.model)
    slo = None if found.slo is None else parse(ServiceLevelObjective, found.slo)
    if not isinstance(model, Model) or not (slo is None or isinstance(slo, ServiceLevelObjective)):
        raise TypeError("an object of another kind was parsed")
    print(report(model, slo, time.time()))
    return 0


def parse(kind: type[ApiType], raw: Object) -> ApiType:
    from pydantic import ValidationError

    from headrace.cli.main import UsageError

    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{kind.__name__}: {path}: {first['msg']}") from error


def _from_file(arguments: argparse.Namespace) -> Found:
    from headrace.cli.main import UsageError

    objects = list(objects_of(load(arguments.file)))
    models = [
        o
        for o in objects
        if o.get("kind") == "Model"
        and meta_of(o).get("name") == arguments.name
        and arguments.namespace in (None, meta_of(o).get("namespace", "default"))
    ]
    if not models:
        raise UsageError(f"{arguments.file}: holds no Model named {arguments.name}")
    model = models[0]
    name, namespace = _slo_name(model), meta_of(model).get("namespace", "default")
    slos = (
        o
        for o in objects
        if o.get("kind") == "ServiceLevelObjective"
        and (meta_of(o).get("name"), meta_of(o).get("namespace", "default")) == (name, namespace)
    )
    return Found(model, next(slos, None))


def load(name: str) -> Any:
    import sys
    from pathlib import Path

    import yaml

    from headrace.cli.main import UsageError
    from headrace.cli.manifests import load_all

    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
        return load_all(text)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{name} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{name} is neither JSON nor YAML: {' '.join(str(error).split())}") from error


def objects_of(documents: Iterable[Any]) -> Iterable[Object]:
    """The objects of the documents, those of lists included."""
    for document in documents:
        if isinstance(document, dict) and isinstance(document.get("items"), list):
            yield from objects_of(document["items"])
        elif isinstance(document, dict):
            yield document


def _from_cluster(arguments: argparse.Namespace) -> Found:
    return fetched("Model", arguments, _read)


def fetched(kind: str, arguments: argparse.Namespace, read: Callable[[str, str], Coroutine[Any, Any, T]]) -> T:
    """What `read` finds by namespace and name. Raises UsageError with where there is one, or with what failed."""
    import asyncio

    from headrace.cli.main import UsageError
    from headrace.cluster.errors import ClusterError, NotFound

    namespace = arguments.namespace or "default"
    try:
        return asyncio.run(read(namespace, arguments.name))
    except NotFound as error:
        raise UsageError(absence(kind, arguments.name, namespace)) from error
    except ClusterError as error:
        raise UsageError(str(error)) from error


def absence(kind: str, name: str, namespace: str) -> str:
    """The sentence that there is none, and where there is one of that name, if the cluster may be listed."""
    import asyncio

    from headrace.cluster.errors import ClusterError

    said = f"there is no {kind} {name} in namespace {namespace}"
    try:
        others = asyncio.run(_namespaces_with(kind, name))
    except ClusterError:
        return f"{said}; -n NAMESPACE names another one"
    if not others:
        return f"{said}, nor in another one"
    return f"{said}, but in {', '.join(others)}: say -n {others[0]}"


async def _namespaces_with(kind: str, name: str) -> list[str]:
    from headrace.cluster.client import connect
    from headrace.cluster.resources import MODELS, TENANTS

    async with await connect() as client:
        found, _ = await client.list({"Model": MODELS, "Tenant": TENANTS}[kind], None)
    return sorted(meta_of(one)["namespace"] for one in found if meta_of(one).get("name") == name)


async def _read(namespace: str, name: str) -> Found:
    from headrace.cluster.client import connect
    from headrace.cluster.errors import NotFound
    from headrace.cluster.resources import MODELS, SLOS

    async with await connect() as client:
        model = await client.get(MODELS, namespace, name)
        reference = _slo_name(model)
        try:
            slo = None if reference is None else await client.get(SLOS, namespace, reference)
        except NotFound:
            slo = None
        return Found(model, slo)


def meta_of(obj: Object) -> Object:
    meta = obj.get("metadata")
    return meta if isinstance(meta, dict) else {}


def _slo_name(model: Object) -> str | None:
    reference = (model.get("spec") or {}).get("serviceLevelRef")
    return reference.get("name") if isinstance(reference, dict) else None
