"""Where a running server's CPU time goes, by library and by function: `perf` samples its processes during a loop.

Works for every server without its help. Nothing is measured meanwhile, and nothing is said where `perf` is missing.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from pathlib import Path

from benchmarks.engine.peers import cells
from benchmarks.engine.peers.client import closed_loop
from benchmarks.engine.peers.processes import tree
from benchmarks.engine.peers.records import Profile

CONCURRENCY = 16
WHAT = {"dso": f"c={CONCURRENCY}, by library", "dso,symbol": f"c={CONCURRENCY}, by function"}
HERTZ = "199"
TOP = 12
WAIT_S = 60.0  # for perf to write or to read its file
LINE = re.compile(r"^\s*([\d.]+)%\s+(.*\S)")


def available() -> bool:
    """Is `perf` here, and may it sample?"""
    command = ("perf", "record", "-q", "-e", "cpu-clock", "-o", "/dev/null", "true")
    return shutil.which("perf") is not None and not subprocess.run(command, capture_output=True, check=False).returncode


def sample(bench: cells.Bench, folder: Path) -> list[Profile]:
    """Profiles of one loop; none if perf fails."""
    data = folder / f"{bench.name}.perf"
    pids = ",".join(map(str, tree(bench.server.pid)))
    bodies = bench.bodies(f"profile/{bench.name}", 2 * CONCURRENCY)
    command = ["perf", "record", "-q", "-e", "cpu-clock", "-F", HERTZ, "-o", str(data), "-p", pids]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as perf:
        cells.run(closed_loop(bench.server.target, bodies, CONCURRENCY))
        perf.send_signal(signal.SIGINT)
        perf.wait(WAIT_S)
    found = []
    for sort, what in WHAT.items():
        done = subprocess.run(
            ["perf", "report", "-i", str(data), "--stdio", "-q", "--sort", sort],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=WAIT_S,
            check=False,
        )
        if rows := parse(done.stdout):
            found.append(Profile(server=bench.name, what=what, rows=rows))
    data.unlink(missing_ok=True)
    return found


def parse(text: str) -> list[tuple[str, float]]:
    """The largest rows of `perf report`; code that has no file (made at run time) is one row."""
    shares: dict[str, float] = {}
    for match in filter(None, map(LINE.match, text.splitlines())):
        name = re.sub(r"\s+\[[.k]\]\s+", ": ", match.group(2)).strip()
        name = re.split(r"\s{2,}", name)[0]  # some versions add columns
        if re.match(r"\[?(JIT|unknown|anon)|//anon|0x", name) or name.startswith("perf-"):
            name = "code made at run time (matrix products)"
        name = re.sub(r": 0x[0-9a-f]+$", "", name)[:90]
        shares[name] = shares.get(name, 0.0) + float(match.group(1)) / 100
    return [(name, round(share, 4)) for name, share in sorted(shares.items(), key=lambda item: -item[1])[:TOP]]
