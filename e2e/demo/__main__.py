"""`python -m demo up | down`."""

from __future__ import annotations

import argparse
import sys

from cluster.errors import ClusterError
from demo.talk import DemoFailed
from demo.up import down, up
from rig.kube import CommandFailed, WaitFailed


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("up", help="run the demo and leave the cluster up")
    run.add_argument("--no-burst", action="store_true", help="leave out the last step, which takes about four minutes")
    verbs.add_parser("down", help="remove all that the demo started")
    arguments = parser.parse_args()
    try:
        if arguments.verb == "up":
            up(with_burst=not arguments.no_burst)
        else:
            down()
    except (ClusterError, CommandFailed, WaitFailed, DemoFailed) as error:
        print(f"\ndemo: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
