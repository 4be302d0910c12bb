"""`python -m headrace.bench.pack FILE ...`: bring trace files into the compact form."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from headrace.bench.packed import FOLDER, save
from headrace.bench.readers import read


def main(paths: Sequence[str]) -> int:
    """Pack each file into the package's folder of traces."""
    for text in paths:
        path = Path(text)
        target = FOLDER / f"{path.stem}.npz"
        save(read(path), target)
        print(f"{target.name}: {target.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
