"""`python -m rig prepare | close`: what `make test` does before the tests and after them."""

from __future__ import annotations

import argparse
import sys

from cluster.errors import ClusterError
from rig import foreign
from rig.kube import CommandFailed
from rig.stage import INSTANCE, RELEASE, TEAM
from rig.world import check, close_world, prepare


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="rig", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("prepare", help="say what the tests will do, and bring in what they need")
    verbs.add_parser("close", help="remove what an interrupted run left")
    verb = parser.parse_args().verb
    try:
        if verb == "close":
            close_world(INSTANCE, [RELEASE], [TEAM])
            return 0
        own = foreign.kubeconfig()
        where = (
            f"embedded cluster {INSTANCE!r}" if own is None else f"cluster of {own}, namespaces {RELEASE} and {TEAM}"
        )
        print(f"All tests. Those end to end play on the {where}. What is started is removed at the end.", flush=True)
        check()
        prepare(("binaries", "venv", "images") if own is None else ("binaries", "venv"))
    except (ClusterError, CommandFailed) as error:
        print(f"rig: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
