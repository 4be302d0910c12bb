"""`headrace key new`."""

from __future__ import annotations

import argparse
import base64
import hashlib
import json

import pytest
import yaml

from headrace.api.tenant import TenantSpec
from headrace.cli import key
from headrace.cli.main import UsageError


def ask(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    parser = argparse.ArgumentParser()
    key.register(parser.add_subparsers())
    arguments = parser.parse_args(["key", "new", *flags])
    assert arguments.run(arguments) == 0
    return capsys.readouterr().out


def test_json_has_the_key_and_the_hash_of_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    made = json.loads(ask(capsys, "--name", "ci", "-o", "json"))
    assert made["name"] == "ci"
    assert made["sha256"] == hashlib.sha256(made["key"].encode()).hexdigest()


def test_key_holds_256_random_bits(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (json.loads(ask(capsys, "-o", "json"))["key"] for _ in range(2))
    assert first != second
    assert first.startswith("hr-")
    assert len(base64.urlsafe_b64decode(first.removeprefix("hr-") + "=")) == 32


def test_text_shows_the_key_once_and_yaml_for_the_tenant(capsys: pytest.CaptureFixture[str]) -> None:
    shown, snippet = ask(capsys, "--name", "007").split("\n\n", 1)
    assert shown not in snippet
    spec = TenantSpec.model_validate(yaml.safe_load(snippet)["spec"])
    assert [entry.name for entry in spec.api_keys] == ["007"]
    assert spec.api_keys[0].sha256 == hashlib.sha256(shown.encode()).hexdigest()


@pytest.mark.parametrize("name", ["", "CI", "a b", "a-", "a" * 64, "a\n"], ids=repr)
def test_name_that_no_tenant_could_hold_is_refused(capsys: pytest.CaptureFixture[str], name: str) -> None:
    with pytest.raises(UsageError, match="--name"):
        ask(capsys, "--name", name)
