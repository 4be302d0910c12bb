"""`python -m headrace.cli`."""

from __future__ import annotations

from headrace.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
