"""The core as a process of its own: `run` is the target of a spawned child."""

from __future__ import annotations

import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import time

from headrace_engine import logs
from headrace_engine.config import EngineConfig
from headrace_engine.core import collector, threads
from headrace_engine.core.blocks import BlockPool
from headrace_engine.core.budget import Pace
from headrace_engine.core.failure import StartError
from headrace_engine.core.link import Link
from headrace_engine.core.loop import Loop
from headrace_engine.core.measure import measure
from headrace_engine.core.messages import Failed, Ready
from headrace_engine.core.plan import Runner
from headrace_engine.core.recorded import Recorded, recorded
from headrace_engine.core.scheduler import Limits, Scheduler
from headrace_engine.core.state import Identity, Reporter

log = logging.getLogger(__name__)

EXIT_START = 1  # the model cannot be served
EXIT_FATAL = 70  # the loop ended with an error


def run(config: EngineConfig, inbound: str, outbound: str) -> None:
    """Serve until told to stop; the API process has bound both ZeroMQ addresses, the core connects.

    Sends Ready, then Deltas and StateReports; before any exit with a code other than 0, Failed.
    Ends with its parent, whatever ends that.
    """
    logs.set_up(config.log_level)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # sent to the whole process group, they reach both: the parent decides
    _die_with_parent()
    count = threads.count(config.threads)
    policy = config.threads_wait or threads.set_policy(os.environ, count, threads.allowed_cpus())
    log.info("core started", extra={"threads": count, "threads_wait": policy})
    link = Link(inbound, outbound)
    code = 0
    try:
        _serve(config, link)
    except StartError as error:
        log.error("the core cannot start", extra={"reason": error.reason, "file": error.file})
        link.send(Failed(reason=error.reason, message=error.message, file=error.file))
        code = EXIT_START
    except Exception as error:
        log.exception("the core failed")
        link.send(Failed(reason="EngineFailed", message=f"{type(error).__name__}: {error}"))
        code = EXIT_FATAL
    link.close()
    sys.exit(code)


def _serve(config: EngineConfig, link: Link) -> None:
    if config.contradiction:
        raise StartError("ConfigInvalid", config.contradiction)
    from headrace_engine.runner.build import build  # torch is imported here, after the thread policy is set

    engine = build(config)
    model, kv = engine.model, engine.runner.kv
    limits = Limits(
        max_sequences=config.max_sequences,
        max_batch_tokens=config.max_batch_tokens,
        max_tokens=model.max_tokens,
        vocab=engine.shape.vocab,
    )
    pace = Pace()
    reporter = Reporter(Identity(model, kv, config.instance), pace.times)
    scheduler = Scheduler(limits, BlockPool(kv.pages), reporter.cache_root, pace)
    runner = _recorded(engine.runner, config.record_steps)
    scheduler.forget(measure(engine.runner, limits, pace.times, time.monotonic))
    loop = Loop(scheduler, runner, link, reporter, time.monotonic)
    collector.settle()
    link.send(
        Ready(
            model=model,
            shape=engine.shape,
            memory=engine.memory,
            kv_groups=kv.groups,
            total_pages=kv.pages,
            cache_root=scheduler.cache_root,
            step_times=pace.times.told,
        )
    )
    try:
        loop.run()
    finally:
        if isinstance(runner, Recorded):
            runner.close()


def _recorded(runner: Runner, path: str) -> Runner:
    """The same runner if no file is named. Raises StartError."""
    if not path:
        return runner
    try:
        return recorded(runner, path, time.monotonic)
    except OSError as error:
        raise StartError("ConfigInvalid", f"--record-steps {path}: {error.strerror}") from error


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(EXIT_FATAL)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
