"""A single-node Kubernetes on this machine, and what it needs: binaries, images, the Python environment.

A fresh Debian 12 machine: `setup` once (12 to 14 minutes), then `up --name demo`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from cluster import binaries, clean, instance, prepare, venv
from cluster import images as cluster_images
from cluster.cgroups import Groups
from cluster.errors import ClusterError, require_root
from cluster.instance import Instance
from cluster.network import enter

EPILOG = "Results are cached below ~/.cache/headrace ($HEADRACE_CACHE says where else)."


def main(argv: list[str] | None = None) -> int:
    """Run one verb; a ClusterError is one message on stderr and exit code 1."""
    arguments = parser().parse_args(argv)
    try:
        return int(arguments.run(arguments) or 0)
    except ClusterError as error:
        sys.stderr.write(f"cluster: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("cluster: interrupted; `down` removes what was begun\n")
        return 130


def parser() -> argparse.ArgumentParser:
    """The verbs and their flags."""
    top = argparse.ArgumentParser(
        prog="python -m cluster",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    verb = _verb(verbs, "up", _up, "start an instance, or repair it, or do nothing if it is healthy")
    verb.add_argument("--gpus", type=int, metavar="N", help="let the node count N nvidia.com/gpu")
    verb = _verb(verbs, "down", _down, "remove an instance and check that nothing of it is left")
    verb.add_argument("--purge", action="store_true", help="remove its image store too")
    _verb(verbs, "status", _status, "say how an instance is; exit 1 if it is not healthy")
    verb = _verb(verbs, "exec", _exec, "run a command in the instance's network namespace, KUBECONFIG set")
    verb.add_argument("command", nargs=argparse.REMAINDER, metavar="-- CMD", help="the command")
    verb = _verb(verbs, "load", _load, "bring images into an instance, sending only layers it lacks")
    verb.add_argument(
        "images", nargs="*", metavar="IMAGE", help="headrace/NAME:TAG (default: the project's, built if need be)"
    )
    _machine_verbs(verbs)
    return top


def _machine_verbs(verbs: Any) -> None:
    text = "make the machine ready: Debian packages, Kubernetes binaries, Python environment, images"
    verb = _verb(verbs, "setup", _setup, text, instance_name=False)
    verb.add_argument("--only", metavar="PARTS", help=f"some of {','.join(prepare.PARTS)}, separated by commas")
    _verb(verbs, "venv", _venv, "make this checkout's .venv and print its path", instance_name=False)
    verb = _verb(verbs, "images", _images, "build the project's images and print their names", instance_name=False)
    verb.add_argument("--json", action="store_true", help="print one JSON object")
    verb.add_argument("--list", action="store_true", help="print the names only, build nothing")
    _verb(
        verbs,
        "clean",
        _clean,
        "drop cached results that neither this checkout nor an instance needs",
        instance_name=False,
    )
    verb = _verb(verbs, "binary", _binary, "print the path of a compiled program", instance_name=False)
    verb.add_argument("program", choices=[program.name for program in binaries.PROGRAMS])


def _verb(verbs: Any, name: str, run: Any, text: str, instance_name: bool = True) -> argparse.ArgumentParser:
    verb: argparse.ArgumentParser = verbs.add_parser(name, help=text, description=text)
    verb.set_defaults(run=run)
    if instance_name:
        verb.add_argument("--name", required=True, help="the instance, e.g. demo or test")
    return verb


def _up(arguments: argparse.Namespace) -> None:
    sys.stdout.write(f"{instance.up(arguments.name, arguments.gpus).layout.kubeconfig}\n")


def _down(arguments: argparse.Namespace) -> None:
    instance.down(arguments.name, arguments.purge)


def _status(arguments: argparse.Namespace) -> int:
    found = Instance(arguments.name)
    problems = found.problems()
    plan = found.plan()
    sys.stdout.write(f"instance {found.name}: {'healthy' if not problems else '; '.join(problems)}\n")
    if not problems:
        memory = Groups(plan.namespace).daemon_memory()
        sys.stdout.write(
            f"kubeconfig {found.layout.kubeconfig}\napi {plan.api_url}\npods {plan.pod_cidr}\n"
            f"services {plan.service_cidr}\nmemory of its parts {memory / 1e6:.0f} MB\n"
        )
    return 1 if problems else 0


def _exec(arguments: argparse.Namespace) -> None:
    require_root("entering a network namespace")
    found = Instance(arguments.name)
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        raise ClusterError("exec: name a command after --")
    if found.problems():
        raise ClusterError(f"instance {found.name} is not up: run `python3 -m cluster up --name {found.name}` first")
    os.environ["KUBECONFIG"] = str(found.layout.kubeconfig)
    prefix = enter(found.plan().namespace)
    os.execvp(prefix[0], [*prefix, *command])


def _load(arguments: argparse.Namespace) -> None:
    found = Instance(arguments.name)
    found.images()  # says so at once if it is down
    found.load(arguments.images or cluster_images.build_all().values())


def _setup(arguments: argparse.Namespace) -> None:
    only = arguments.only.split(",") if arguments.only else prepare.PARTS
    if unknown := set(only) - set(prepare.PARTS):
        raise ClusterError(f"setup --only {','.join(sorted(unknown))}: parts are {', '.join(prepare.PARTS)}")
    prepare.prepare(only)


def _venv(_: argparse.Namespace) -> None:
    sys.stdout.write(f"{venv.ensure()}\n")


def _images(arguments: argparse.Namespace) -> None:
    names = cluster_images.current() if arguments.list else cluster_images.build_all()
    text = json.dumps(names) if arguments.json else "\n".join(names.values())
    sys.stdout.write(f"{text}\n")


def _clean(_: argparse.Namespace) -> None:
    clean.clean()


def _binary(arguments: argparse.Namespace) -> None:
    program = next(program for program in binaries.PROGRAMS if program.name == arguments.program)
    sys.stdout.write(f"{binaries.build(program)}\n")
