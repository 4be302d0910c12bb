"""`headrace key new`: a random API key for a tenant. It is printed once; only its hash goes into a Tenant."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import secrets
from dataclasses import dataclass

PREFIX = "hr-"
RANDOM_BYTES = 32  # 256 bits: its hash may stand in Git


@dataclass(frozen=True)
class NewKey:
    """A key and the entry of Tenant.spec.apiKeys that knows it by its hash."""

    name: str
    key: str

    @property
    def sha256(self) -> str:
        """Hash of the whole key, prefix included, in lower-case hex."""
        return hashlib.sha256(self.key.encode("ascii")).hexdigest()


def new_key(name: str) -> NewKey:
    """A key of 256 random bits."""
    return NewKey(name, PREFIX + secrets.token_urlsafe(RANDOM_BYTES))


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser("key", help="make API keys for tenants")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    new = actions.add_parser("new", help="print a new random key and its entry for Tenant.spec.apiKeys")
    new.add_argument("--name", default="default", help="name of the key in the Tenant (default: default)")
    new.add_argument("-o", "--output", choices=("text", "json"), default="text", help="form of the output")
    new.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print a new key."""
    from headrace.api.common import LABEL_PATTERN
    from headrace.cli.main import UsageError

    name: str = arguments.name
    if len(name) > 63 or not re.fullmatch(LABEL_PATTERN, name):
        raise UsageError(f"--name {name!r} must be at most 63 of a-z, 0-9 and -, as a key's name in a Tenant")
    key = new_key(name)
    print(_as_json(key) if arguments.output == "json" else _as_text(key))
    return 0


def _as_json(key: NewKey) -> str:
    return json.dumps({"name": key.name, "key": key.key, "sha256": key.sha256})


def _as_text(key: NewKey) -> str:
    return (
        f"{key.key}\n\n"
        "# This is the only time that the key is shown: give it to the caller.\n"
        "# Add its hash, which is safe in Git, to the Tenant:\n"
        "spec:\n"
        "  apiKeys:\n"
        f'  - name: "{key.name}"\n'
        f'    sha256: "{key.sha256}"'
    )
