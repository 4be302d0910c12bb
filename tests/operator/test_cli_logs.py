"""How operator and gateway write their logs, and what the gateway's command says of settings that cannot work."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli.logs import JsonFormatter, TextFormatter
from headrace.cli.main import main

KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: a, cluster: {server: "http://127.0.0.1:9"}}]
users: [{name: u, user: {token: x}}]
contexts: [{name: c, context: {cluster: a, user: u}}]
current-context: c
"""


def record(message: str, **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("headrace.x", logging.INFO, __file__, 1, message, (), None)
    made.__dict__.update(fields)
    return made


@pytest.mark.parametrize(
    ("fields", "ends"),
    [
        pytest.param({}, " INFO headrace.x it ended", id="no fields"),
        pytest.param({"status": 200, "class_": "batch"}, " it ended status=200 class=batch", id="plain"),
        pytest.param({"error": "no such file"}, ' it ended error="no such file"', id="blanks"),
        pytest.param({"error": 'say "no"\n'}, ' it ended error="say \\"no\\"\\n"', id="quotes and lines"),
        pytest.param({"reason": "", "ttft_ms": None}, ' it ended reason="" ttft_ms=null', id="nothing"),
        pytest.param({"many": [1, 2]}, " it ended", id="what is no plain value"),
    ],
)
def test_text_is_one_line_with_fields(fields: dict[str, object], ends: str) -> None:
    line = TextFormatter().format(record("it ended", **fields))
    assert line.endswith(ends) and "\n" not in line


def test_all_fields_at_once() -> None:
    about = {"status": 200, "reason": "", "class": "batch"}
    line = json.loads(JsonFormatter().format(record("it ended", about=about)))
    assert {name: line[name] for name in about} == about and line["message"] == "it ended" and "about" not in line
    assert TextFormatter().format(record("it ended", about=about)).endswith(' status=200 reason="" class=batch')


@pytest.mark.parametrize("value", ["\udcff", 2**80, float("nan")], ids=["half a character", "huge", "no number"])
def test_no_value_costs_the_line(value: object) -> None:
    assert json.loads(JsonFormatter().format(record("it ended", value=value)))["message"] == "it ended"


def test_text_cannot_be_made_to_look_like_two_lines() -> None:
    assert "\n" not in TextFormatter().format(record("a\nb"))


def run(capsys: pytest.CaptureFixture[str], *flags: str) -> list[str]:
    """What the command says on standard error."""
    assert main(["gateway", "--host", "127.0.0.1", "--port", "0", "--state-port", "0", *flags]) == 2
    return capsys.readouterr().err.strip().splitlines()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        pytest.param(("--log-level", "LOUD"), "--log-level must be one of DEBUG, INFO", id="level"),
        pytest.param(("--log-format", "xml"), "--log-format must be one of json, text", id="format"),
        pytest.param(("--namespaces", " , "), "--namespaces names none", id="no namespace"),
        pytest.param(("--namespaces", "team-a,*"), "'*' is no name of a namespace", id="a pattern"),
        pytest.param(("--port", "70000"), "--port must be a port, got 70000", id="port"),
        pytest.param(("--idle-seconds", "-1"), "--idle-seconds must be 0 to 86400 seconds", id="time that runs back"),
        pytest.param(("--idle-seconds", "nan"), "--idle-seconds must be 0 to 86400 seconds", id="no time"),
        pytest.param(("--queue-requests", "0"), "--queue-requests must be at least 1", id="no queue"),
    ],
)
def test_gateway_flags_that_cannot_be(capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], says: str) -> None:
    said = run(capsys, *flags)
    assert said[-1].startswith("headrace: gateway: ") and says in said[-1]
    assert not any("Traceback" in line for line in said)


@pytest.mark.parametrize("style", ["json", "text"])
def test_a_start_that_fails_is_a_line_and_a_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, style: str
) -> None:
    path = tmp_path / "config"
    path.write_text(KUBECONFIG)
    monkeypatch.setenv("KUBECONFIG", str(path))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = run(capsys, "--log-format", style, "--port", str(port))
    assert said[-1].startswith(f"headrace: gateway: port {port} of 127.0.0.1 cannot be listened on")
    assert "--port" in said[-1]
    line = next(line for line in said if "gateway did not start" in line)
    if style == "json":
        assert json.loads(line)["level"] == "error" and str(port) in json.loads(line)["message"]
    else:
        assert " ERROR headrace.cli.gateway gateway did not start" in line


def test_every_line_of_a_gateways_life_is_json(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(KUBECONFIG)
    command = [sys.executable, "-m", "headrace.cli", "gateway", "--host", "127.0.0.1", "--port", "0"]
    flags = ["--state-port", "0", "--namespaces", "team-a", "--linger-seconds", "0", "--drain-seconds", "1"]
    environment = {**os.environ, "KUBECONFIG": str(path), "TMPDIR": str(tmp_path)}
    with subprocess.Popen([*command, *flags], stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stderr is not None
            lines = []
            for text in process.stderr:  # ends when the process does
                lines.append(json.loads(text))
                if lines[-1]["message"] == "gateway started":
                    process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
    started = next(line for line in lines if line["message"] == "gateway started")
    assert started["port"] > 0 and started["state_port"] > 0 and started["namespaces"] == "team-a"
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", started["version"]) and started["first_s"] == 120
    assert lines[-1]["message"] == "gateway stopped"
    assert {"time", "level", "logger", "message"} <= set.intersection(*(set(line) for line in lines))
