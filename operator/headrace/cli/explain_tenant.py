"""`headrace explain tenant NAME`: what a Tenant may do, what it uses, and why its requests are refused."""

from __future__ import annotations

import argparse
import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.api.gateway_state import GatewayState
    from headrace.api.model import Model
    from headrace.api.slo import ServiceLevelObjective

Object = dict[str, Any]
TIMEOUT_S = 5.0
STATE_PATH = "/internal/v1/state"
EPILOG = """\
examples:
  headrace explain tenant search -n team-a
  kubectl get tenants,models,servicelevelobjectives -n team-a -o json | headrace explain tenant search -n team-a -f -

Use as status.usage has it is some seconds old; requests that were refused are counted by the gateways alone. Ask them,
all of them where there are several:
  kubectl port-forward -n headrace deploy/headrace-gateway 9090 &
  headrace explain tenant search -n team-a --state http://127.0.0.1:9090
"""


@dataclass
class Found:
    """The Tenant's object, and what stands beside it in its namespace."""

    tenant: Object
    models: list[Object] = field(default_factory=list)
    slos: list[Object] = field(default_factory=list)


def named(text: str) -> str:
    """An argparse type: a name."""
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty")
    return text


def register(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the kind to `headrace explain`."""
    parser = kinds.add_parser(
        "tenant",
        aliases=["tenants", "tnt"],
        help="a Tenant",
        description="Tells what keeps a Tenant's requests from being served, its keys (by name and hash, never the "
        "key), its quotas and what is used of them, which Models it may call and in which class, and why requests "
        "were refused.",
        epilog=textwrap.dedent(EPILOG),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", type=named, metavar="NAME", help="name of the Tenant")
    parser.add_argument("-n", "--namespace", default=None, help="its namespace (default: default)")
    parser.add_argument(
        "-f",
        "--file",
        metavar="FILE",
        help="read the objects from FILE (JSON or YAML, as of `kubectl get -o json`, also a list with Models and "
        "ServiceLevelObjectives) instead of the cluster; - reads standard input",
    )
    parser.add_argument(
        "--state",
        metavar="URL|FILE",
        action="append",
        default=[],
        help="a gateway's state port, such as http://127.0.0.1:9090, or a file with what it answers at "
        f"{STATE_PATH}; once for each gateway",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the explanation. Raises UsageError."""
    import time

    from headrace.api.tenant import Tenant
    from headrace.cli.explain import parse
    from headrace.cli.tenant_report import Scene, report

    found = _from_file(arguments) if arguments.file is not None else _from_cluster(arguments)
    tenant = parse(Tenant, found.tenant)
    if not isinstance(tenant, Tenant):
        raise TypeError("an object of another kind was parsed")
    models, slos = _parsed(found)
    states = [_state(source) for source in arguments.state]
    print(report(Scene(tenant, models, slos, states, time.time())))
    return 0


def _parsed(found: Found) -> tuple[dict[str, Model], dict[str, ServiceLevelObjective]]:
    """By name; what cannot be read is left out, as the gateway does."""
    from pydantic import ValidationError

    from headrace.api.model import Model
    from headrace.api.slo import ServiceLevelObjective

    models: dict[str, Model] = {}
    slos: dict[str, ServiceLevelObjective] = {}
    for raw in found.models:
        try:
            model = Model.model_validate(raw)
        except ValidationError:
            continue
        models[model.metadata.name] = model
    for raw in found.slos:
        try:
            slo = ServiceLevelObjective.model_validate(raw)
        except ValidationError:
            continue
        slos[slo.metadata.name] = slo
    return models, slos


def _state(source: str) -> GatewayState:
    """What a gateway answers, or a file with that. Raises UsageError."""
    from pathlib import Path

    import httpx
    import msgspec

    from headrace.api.gateway_state import GatewayState
    from headrace.cli.main import UsageError

    try:
        if source.startswith(("http://", "https://")):
            url = source.rstrip("/").removesuffix(STATE_PATH) + STATE_PATH
            answer = httpx.get(url, timeout=TIMEOUT_S)
            answer.raise_for_status()
            data = answer.content
        else:
            data = Path(source).read_bytes()
        return msgspec.json.decode(data, type=GatewayState)
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        raise UsageError(f"--state {source}: {str(error) or type(error).__name__}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UsageError(f"--state {source}: is no gateway's state: {error}") from error


def _from_file(arguments: argparse.Namespace) -> Found:
    from headrace.cli.explain import load, meta_of, objects_of
    from headrace.cli.main import UsageError

    objects = list(objects_of(load(arguments.file)))
    wanted = arguments.namespace

    def named(one: Object) -> bool:
        return meta_of(one).get("name") == arguments.name and wanted in (None, _namespace(one))

    tenant = next((one for one in objects if one.get("kind") == "Tenant" and named(one)), None)
    if tenant is None:
        raise UsageError(f"{arguments.file}: holds no Tenant named {arguments.name}")
    beside = [one for one in objects if _namespace(one) == _namespace(tenant)]
    return Found(
        tenant,
        [one for one in beside if one.get("kind") == "Model"],
        [one for one in beside if one.get("kind") == "ServiceLevelObjective"],
    )


def _namespace(one: Object) -> str:
    from headrace.cli.explain import meta_of

    return str(meta_of(one).get("namespace", "default"))


def _from_cluster(arguments: argparse.Namespace) -> Found:
    from headrace.cli.explain import fetched

    return fetched("Tenant", arguments, _read)


async def _read(namespace: str, name: str) -> Found:
    from headrace.cluster.client import connect
    from headrace.cluster.resources import MODELS, SLOS, TENANTS

    async with await connect() as client:
        tenant = await client.get(TENANTS, namespace, name)
        models, _ = await client.list(MODELS, namespace)
        slos, _ = await client.list(SLOS, namespace)
        return Found(tenant, models, slos)
