"""The command line `headrace-engine`: `serve` a model folder, `fetch` a model into one."""

from __future__ import annotations

import argparse
import asyncio
import errno
import logging
import math
import os
import re
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from headrace_engine import logs, termination
from headrace_engine.config import EngineConfig
from headrace_engine.core import threads
from headrace_engine.core.failure import StartError
from headrace_engine.version import version
from headrace_wire.shape import Termination

log = logging.getLogger(__name__)

BUILTIN = "builtin://demo"
_SIZES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}

ABOUT = """\
Serves a language model over an OpenAI-compatible HTTP API: paged attention, continuous batching, prefix cache.

  headrace-engine serve builtin://demo
  curl localhost:8000/v1/chat/completions -H 'content-type: application/json' \\
    -d '{"model": "demo", "messages": [{"role": "user", "content": "What is TTFT?"}]}'
"""
SERVE = """\
Serves a model folder (config.json, tokenizer.json, safetensors; `headrace-engine fetch` makes one) or builtin://demo.

  headrace-engine serve builtin://demo --port 8000
  headrace-engine serve /models/qwen3 --served-model-name chat --max-model-len 8192 --kv-cache-bytes 4Gi

It then answers /v1/chat/completions, /v1/completions, /v1/models, /tokenize, /detokenize, /health, /ready, /metrics;
/openapi.json describes every field. Bodies have at most 4 MiB.

What the memory is used for: weights, then KV pages of 64 tokens. --kv-cache-bytes bounds their size; without it
they get what --memory-percent of the memory limit leaves. The log says the arithmetic. The engine refuses to start if
not one sequence of full length fits, or if the size asked for is not there: lower --max-model-len, or give it more
memory. In neither case are there more pages than --max-sequences of full length could use.

Speed: --max-sequences bounds how many requests run at a time (the others wait in the engine), --max-batch-tokens how
many tokens one step computes, at least one for each of these. Beside running streams a step takes fewer prompt
tokens: as many as keep their targets, or let it last three times what the streams alone would. Threads spin for a
moment while they wait if the engine has all its CPUs for itself, and sleep at once if it has not (OMP_WAIT_POLICY,
GOMP_SPINCOUNT override it); the log says which.

Ends with 0 after SIGTERM (running requests finish first, see --drain-seconds), 1 if the model cannot be served,
2 if an option is wrong, 70 if the core process died.
"""
FETCH = """\
Makes the model of a URI usable as DIR/model and checks it: the configuration can be read, the architecture is
supported, every weight file is there and holds the tensors that the index names.

  builtin://demo            the model inside this package
  pvc://CLAIM/sub/path      a folder of a volume that is mounted at --pvc-root
  hf://org/name@revision    a model hub (HF_ENDPOINT, HF_TOKEN); without @revision its main branch

Writes what it found as JSON to the termination log (HEADRACE_TERMINATION_LOG, else /dev/termination-log).
"""


MOST_BYTES = (1 << 63) - 1


def parse_bytes(text: str) -> int:
    """Bytes of `1073741824`, `512Mi`, `2G`. Raises ArgumentTypeError."""
    match = re.fullmatch(r"(\d+)\s*([kmgt]?i?)b?", text.strip().lower())
    if match is None or match.group(2) not in _SIZES:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write bytes, or a number with Ki, Mi, Gi")
    size = int(match.group(1)) * _SIZES[match.group(2)]
    if size > MOST_BYTES:
        raise argparse.ArgumentTypeError(f"{text!r} is more than any machine has")
    return size


def _bounded(low: int, high: int) -> Callable[[str], int]:
    """An argparse type: an integer from `low` to `high`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from error
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{value} is not between {low} and {high}")
        return value

    return parse


def _seconds(text: str) -> float:
    """An argparse type: a time that is finite and not negative."""
    try:
        value = float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from error
    if not 0.0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds from 0 on")
    return value


def _named(text: str) -> str:
    """An argparse type: a name or a path, not blank."""
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty: write a name, or leave the flag out")
    return text


def parser() -> argparse.ArgumentParser:
    """The command line."""
    raw = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser("headrace-engine", description=ABOUT, formatter_class=raw)
    top.add_argument("--version", action="version", version=f"headrace-engine {version()}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="serve a model folder", description=SERVE, formatter_class=raw)
    _add_serve(serve)
    fetch = commands.add_parser("fetch", help="make a model folder", description=FETCH, formatter_class=raw)
    fetch.add_argument("uri", metavar="URI", help="builtin://demo, pvc://CLAIM/path or hf://org/name@revision")
    fetch.add_argument("--into", metavar="DIR", type=Path, required=True, help="the model folder becomes DIR/model")
    fetch.add_argument(
        "--pvc-root", metavar="DIR", type=Path, default=Path("/source"), help="where the claim is mounted"
    )
    fetch.set_defaults(run=run_fetch)
    for command in (serve, fetch):
        command.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    return top


def _add_serve(serve: argparse.ArgumentParser) -> None:
    tokens = _bounded(1, 1 << 30)
    serve.add_argument("path", metavar="PATH", help="the model folder, or builtin://demo")
    add = serve.add_argument_group("what is served, and where").add_argument
    add("--served-model-name", type=_named, metavar="NAME", help="`model` in requests (default: the folder's name)")
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s; 0.0.0.0 for all)")
    add("--port", type=_bounded(0, 65535), default=8000, help="default: %(default)s; 0 for any free one")
    add(
        "--max-model-len",
        type=_bounded(2, 1 << 30),
        metavar="TOKENS",
        help="context: prompt and output (default: the model's)",
    )
    instance = os.environ.get("HEADRACE_INSTANCE") or None
    add("--instance", type=_named, default=instance, metavar="ID", help="stable id of this process")
    add = serve.add_argument_group("memory").add_argument
    add("--dtype", choices=("auto", "bfloat16", "float32"), default="auto", help="default: the checkpoint's")
    add("--kv-cache-bytes", type=parse_bytes, metavar="BYTES", help="most for KV pages, as 512Mi or in bytes")
    add("--memory-percent", type=_bounded(1, 100), default=90, metavar="PERCENT", help="of the memory limit (90)")
    add = serve.add_argument_group("speed").add_argument
    add("--max-sequences", type=_bounded(1, 4096), default=16, metavar="N", help="requests at a time (%(default)s)")
    add("--max-batch-tokens", type=tokens, default=512, metavar="TOKENS", help="tokens in one step (%(default)s)")
    add("--threads", type=_bounded(0, 1024), default=0, metavar="N", help="of the model (default: the CPUs allowed)")
    add("--record-steps", type=_named, metavar="FILE", help="write the size and the time of each step, never any text")
    add = serve.add_argument_group("leaving").add_argument
    add("--drain-seconds", type=_seconds, default=30.0, metavar="S", help="for running requests after SIGTERM (30)")
    serve.set_defaults(run=run_serve)


def run_fetch(args: argparse.Namespace) -> int:
    """`fetch`: 0, or 1 with the reason in the log and the termination log."""
    from headrace_engine.fetch.fetch import fetch

    try:
        found = fetch(args.uri, args.into, pvc_root=args.pvc_root)
    except StartError as error:
        return _failed(error)
    termination.write(found)
    log.info("model fetched", extra={"revision": found.revision, "weights_bytes": found.weights_bytes})
    return 0


def run_serve(args: argparse.Namespace) -> int:
    """`serve`: the exit code."""
    import uvloop

    from headrace_engine.api.defaults import read_defaults
    from headrace_engine.api.server import EXIT_CORE_DIED, Engine, Settings, listen
    from headrace_engine.core.process import run
    from headrace_engine.fetch.validate import validate

    try:
        folder = _folder(args.path)
    except StartError as error:
        return _failed(error)
    name = args.served_model_name or ("demo" if args.path == BUILTIN else folder.resolve().name)
    config = _config(args, folder, name)
    if config.contradiction:
        return _failed(StartError("ConfigInvalid", config.contradiction))
    try:
        valid = validate(folder)
        config.context(valid.shape.max_positions)
        settings = Settings(args.host, args.port, args.drain_seconds, defaults=read_defaults(folder))
        listening = listen(settings)
    except StartError as error:
        return _failed(error)
    except OSError as error:
        told = f"{args.host}:{args.port}: {error.strerror}; choose another {_at_fault(error)}"
        return _failed(StartError("AddressInvalid", told))
    engine = Engine(_with_threads(config), settings, valid.tokenizer, run)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        ended = runner.run(engine.run(listening))
    if ended.failed is not None:
        failed = ended.failed
        _failed(StartError(failed.reason, failed.message, failed.file))
    if ended.code == EXIT_CORE_DIED:
        logging.shutdown()
        os._exit(ended.code)  # a thread that is still tokenizing must not delay the restart
    return ended.code


def _at_fault(error: OSError) -> str:
    """The flag that a failed `listen` asks to be changed."""
    taken = error.errno in (errno.EADDRINUSE, errno.EACCES, errno.EPERM)
    return "--port" if taken and not isinstance(error, socket.gaierror) else "--host"


def _folder(path: str) -> Path:
    """The folder to serve. Raises StartError for a URI that names none."""
    from headrace_engine.fetch.fetch import DEMO
    from headrace_engine.fetch.sources import Builtin, parse

    if not path:
        raise StartError("SourceInvalid", f"PATH is empty: serve takes a folder or {BUILTIN}")
    if "://" not in path:
        return Path(path)
    if not isinstance(parse(path), Builtin):
        cure = f"run `headrace-engine fetch {path} --into DIR`, then `headrace-engine serve DIR/model`"
        raise StartError("SourceInvalid", f"serve takes a folder or {BUILTIN}: {cure}")
    return DEMO


def _config(args: argparse.Namespace, folder: Path, name: str) -> EngineConfig:
    return EngineConfig(
        path=str(folder),
        served_name=name,
        max_model_len=args.max_model_len,
        max_sequences=args.max_sequences,
        max_batch_tokens=args.max_batch_tokens,
        dtype=args.dtype,
        kv_cache_bytes=args.kv_cache_bytes,
        memory_percent=args.memory_percent,
        threads=args.threads,
        instance=args.instance or "",
        log_level=args.log_level,
        record_steps=args.record_steps or "",
    )


def _with_threads(config: EngineConfig) -> EngineConfig:
    """Sets how threads wait, for the core that inherits the environment, and says so, there and here."""
    count, cpus = threads.count(config.threads), threads.allowed_cpus()
    os.environ.setdefault("OMP_NUM_THREADS", str(count))
    policy = threads.set_policy(os.environ, count, cpus)
    log.info(
        "starting",
        extra={"model": config.served_name, "threads": count, "cpus_allowed": cpus, "threads_wait": policy},
    )
    return replace(config, threads_wait=policy)


def _failed(error: StartError) -> int:
    """Says why, in the log and to Kubernetes."""
    termination.write(Termination(reason=error.reason, file=error.file, message=error.message))
    log.error("%s", error.message, extra={"reason": error.reason, "file": error.file})
    return 1


def _leave(number: int, frame: object) -> None:
    raise SystemExit(0)


def main() -> int:
    """Runs a command; its exit code."""
    signal.signal(signal.SIGTERM, _leave)  # before serving has begun there is nothing to drain
    args = parser().parse_args()
    logs.set_up(args.log_level)
    try:
        code: int = args.run(args)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("headrace"):
            raise
        print(f"headrace-engine: the package {error.name} is missing: install headrace[engine]", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return code


if __name__ == "__main__":
    sys.exit(main())
