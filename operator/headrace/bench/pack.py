"""`python -m headrace.bench.pack FILE ...`: bring trace files into the compact form."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from headrace.bench.packed import save
from headrace.bench.readers import TraceError, read


def main(arguments: Sequence[str]) -> int:
    """Pack each file. Exit code: 2 if one cannot be read or written."""
    parser = argparse.ArgumentParser("python -m headrace.bench.pack", description="Writes NAME.npz of each trace file.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a trace, see docs/autoscaling.md")
    parser.add_argument("--output", type=Path, default=Path(), metavar="DIR", help="where to; default: here")
    options = parser.parse_args(arguments)
    for path in options.files:
        target = options.output / f"{path.stem}.npz"
        try:
            save(read(path), target)
        except (TraceError, OSError) as error:
            print(f"{parser.prog}: {error}", file=sys.stderr)
            return 2
        print(f"{target}: {target.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
