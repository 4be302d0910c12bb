"""`headrace operator` with settings that cannot work: one sentence with the cure, never a traceback."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from headrace.cli.main import main

KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: a, cluster: {server: "http://127.0.0.1:9"}}]
users: [{name: u, user: {token: x}}]
contexts: [{name: c, context: {cluster: a, user: u}}]
current-context: c
"""


def run(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    """What it says on standard error, which must be its last line."""
    assert main(["operator", "--engine-image", "engine:1", "--host", "127.0.0.1", "--port", "0", *flags]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert not any("Traceback" in line for line in said)
    return said[-1]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("not: [yaml", id="broken YAML"),
        pytest.param("hello", id="a word"),
        pytest.param("{}", id="empty"),
        pytest.param("[]", id="a list"),
        pytest.param("current-context: nope", id="a context that is not there"),
        pytest.param(KUBECONFIG.replace("server:", "sever:"), id="a cluster without a server"),
        pytest.param(None, id="no file"),
    ],
)
def test_a_kubeconfig_that_is_none(capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "config"
    if content is not None:
        path.write_text(content)
    said = run(capsys, "--kubeconfig", str(path))
    assert said.startswith("headrace: operator: no cluster")
    assert str(path) in said
    assert "set KUBECONFIG" in said
    assert ("there is no kubeconfig" in said) == (content is None), "missing and malformed are told apart"
    assert "Config not found" not in said


def test_certificates_that_are_gone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "config"
    server = 'server: "https://127.0.0.1:9", certificate-authority: /nonexistent/ca.crt'
    path.write_text(KUBECONFIG.replace('server: "http://127.0.0.1:9"', server))
    said = run(capsys, "--kubeconfig", str(path))
    assert said.startswith("headrace: operator: no cluster")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        pytest.param(("--log-level", "LOUD"), "--log-level must be one of DEBUG", id="log level"),
        pytest.param(("--port", "http"), "--port must be a port, got 'http'", id="port"),
        pytest.param(("--gateway-state-port", "70000"), "--gateway-state-port must be a port", id="no port"),
        pytest.param(("--scraper", "{"), "--scraper is no JSON", id="peer that is no JSON"),
        pytest.param(("--scraper", '{"pods": 1}'), "must be a NetworkPolicyPeer", id="peer that is none"),
        pytest.param(("--namespaces", "team-a,*"), "'*' is no name of a namespace", id="a pattern of namespaces"),
        pytest.param(("--install-namespace", "Upper"), "'Upper' is no name of a namespace", id="no namespace"),
        pytest.param(("--id", ""), "--id must not be empty", id="nobody"),
        pytest.param(("--engine-image", ""), "--engine-image (or HEADRACE_ENGINE_IMAGE) is required", id="no image"),
    ],
)
def test_flags_that_cannot_be(capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], says: str) -> None:
    assert says in run(capsys, *flags)


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(KUBECONFIG)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = run(capsys, "--kubeconfig", str(path), "--port", str(port))
    assert f"127.0.0.1:{port} cannot be listened on" in said
    assert "choose another --port" in said
