"""The command line teaches and refuses."""

from __future__ import annotations

import argparse
import json
import re
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from headrace_engine.main import _config, main, parse_bytes, parser
from headrace_engine.version import version

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", 0), ("1024", 1024), ("512Mi", 512 << 20), ("2G", 2 * 10**9), ("1gib", 1 << 30), ("3 KiB", 3072)],
)
def test_sizes(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5Gi", "Mi", "1Xi", "1i", "9" * 20])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        parse_bytes(text)


REFUSED = {
    "no-command": [],
    "no-path": ["serve"],
    "port": ["serve", "x", "--port", "70000"],
    "sequences": ["serve", "x", "--max-sequences", "0"],
    "dtype": ["serve", "x", "--dtype", "int3"],
    "percent": ["serve", "x", "--memory-percent", "101"],
    "size": ["serve", "x", "--kv-cache-bytes", "lots"],
    "no-target": ["fetch", "builtin://demo"],
    "drain-nan": ["serve", "x", "--drain-seconds", "nan"],
    "drain-negative": ["serve", "x", "--drain-seconds", "-5"],
    "drain-word": ["serve", "x", "--drain-seconds", "long"],
    "context-of-one": ["serve", "x", "--max-model-len", "1"],
    "no-name": ["serve", "x", "--served-model-name", ""],
    "blank-name": ["serve", "x", "--served-model-name", " "],
    "no-instance": ["serve", "x", "--instance", ""],
    "no-record": ["serve", "x", "--record-steps", ""],
}


@pytest.mark.parametrize("arguments", REFUSED.values(), ids=REFUSED)
def test_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parser().parse_args(arguments)
    assert caught.value.code == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--served-model-name", "--instance", "--record-steps"])
def test_an_empty_name_names_its_option(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["serve", "x", option, ""])
    assert f"argument {option}: is empty: write a name, or leave the flag out" in capsys.readouterr().err


@pytest.mark.parametrize(("variable", "instance"), [("pod-7", "pod-7"), ("", "")])
def test_the_instance_is_the_environment_s_where_no_flag_says_it(
    variable: str, instance: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_INSTANCE", variable)
    assert _config(parser().parse_args(["serve", "x"]), Path("x"), "m").instance == instance


def test_a_context_without_room_for_an_answer_names_its_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert parser().parse_args(["serve", "x", "--max-model-len", "2"]).max_model_len == 2
    with pytest.raises(SystemExit):
        parser().parse_args(["serve", "x", "--max-model-len", "1"])
    assert "argument --max-model-len: 1 is not between 2 and " in capsys.readouterr().err


def test_all_flags_of_a_pod_are_understood() -> None:
    arguments = (
        "serve /models/model --served-model-name chat --host 0.0.0.0 --port 8000 --max-model-len 2048 "
        "--max-sequences 2 --max-batch-tokens 256 --dtype auto --kv-cache-bytes 512Mi --memory-percent 80 "
        "--threads 0 --drain-seconds 120 --instance pod-1"
    )
    args = parser().parse_args(arguments.split())
    assert (args.path, args.served_model_name, args.kv_cache_bytes) == ("/models/model", "chat", 512 << 20)
    assert (args.drain_seconds, args.instance, args.threads) == (120.0, "pod-1", 0)


@pytest.mark.parametrize("level", ["debug", "error"])
def test_the_core_logs_at_the_level_that_was_asked_for(level: str) -> None:
    assert _config(parser().parse_args(["serve", "x", "--log-level", level]), Path("x"), "m").log_level == level


@pytest.mark.parametrize("command", ["serve", "fetch"])
def test_help_teaches(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args([command, "--help"])
    text = capsys.readouterr().out
    assert "builtin://demo" in text
    assert len(text.splitlines()) > 20


def test_help_of_serve_teaches_memory_threads_and_routes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["serve", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for words in ("KV pages of 64 tokens", "The log says the arithmetic", "OMP_WAIT_POLICY", "4 MiB", "/openapi.json"):
        assert words in text
    assert re.search(r"Ends with 0 .*, 1 if .*, 2 if an option is wrong, 70 if ", text)
    for group in ("what is served, and where:", "memory:", "speed:", "leaving:"):
        assert group in text


@pytest.mark.parametrize("package", ["uvloop", "uvicorn", "zmq"])
def test_package_that_is_not_installed_is_a_sentence(package: str) -> None:
    program = (
        f"import sys; sys.modules[{package!r}] = None; sys.argv[1:] = ['serve', 'builtin://demo']\n"
        "from headrace_engine.main import main; sys.exit(main())"
    )
    ended = subprocess.run([sys.executable, "-c", program], text=True, capture_output=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr == f"headrace-engine: the package {package} is missing: install headrace[engine]\n"


def test_version_is_the_distributions(capsys: pytest.CaptureFixture[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert version() == project["version"]
    with pytest.raises(SystemExit) as caught:
        parser().parse_args(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"headrace-engine {project['version']}\n"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("builtin://nope", "the only built-in model is builtin://demo"),
        ("hf://org/name", "headrace-engine fetch hf://org/name --into DIR"),
        ("pvc://claim/path", "serve takes a folder or builtin://demo"),
        ("s3://bucket/x", "supported: builtin, pvc, hf"),
        ("/no/such/folder", "/no/such/folder is not a folder"),
    ],
    ids=["unknown-builtin", "hub", "claim", "scheme", "no-folder"],
)
def test_what_cannot_be_served_says_what_to_write_instead(
    path: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_TERMINATION_LOG", str(tmp_path / "log"))
    arguments = parser().parse_args(["serve", path])
    assert arguments.run(arguments) == 1
    assert said in json.loads((tmp_path / "log").read_text())["message"]


UNSERVABLE = {
    "context": (["serve", "builtin://demo", "--max-model-len", "100000"], "a context of 100000 tokens was asked for"),
    "no-path": (["serve", ""], "PATH is empty"),
    "no-such-host": (["serve", "builtin://demo", "--host", "999.1.1.1"], "choose another --host"),
    "not-our-host": (["serve", "builtin://demo", "--host", "192.0.2.1", "--port", "0"], "choose another --host"),
}


@pytest.mark.parametrize(("arguments", "words"), UNSERVABLE.values(), ids=UNSERVABLE)
def test_what_cannot_be_served_names_the_argument(
    arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["headrace-engine", *arguments])
    assert main() == 1
    said = capfd.readouterr()
    assert (said.out + said.err).count(words) == 1
    assert "core started" not in said.err


def test_a_port_that_is_taken_is_named(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        monkeypatch.setattr(sys, "argv", ["headrace-engine", "serve", "builtin://demo", "--port", port])
        assert main() == 1
    said = capfd.readouterr()
    assert f"127.0.0.1:{port}: Address already in use; choose another --port" in said.out + said.err
