"""`python -m demo up | down`."""

from __future__ import annotations

import argparse
import sys

from cluster.errors import ClusterError
from demo.talk import DemoFailed
from demo.up import INSTANCE, down, ending, up
from rig.kube import CommandFailed, WaitFailed


def parser() -> argparse.ArgumentParser:
    """Command line."""
    top = argparse.ArgumentParser(prog="demo", description=__doc__)
    verbs = top.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("up", help="run the demo and leave the cluster up")
    run.add_argument("--no-burst", action="store_true", help="leave out the last step, which takes about four minutes")
    end = verbs.add_parser("down", help="remove all that the demo started")
    for verb in (run, end):
        verb.add_argument("--name", default=INSTANCE, help="of the embedded cluster (default: %(default)s)")
        verb.add_argument("--force", action="store_true", help="even if another checkout started it and it runs")
    return top


def main() -> int:
    """Run one verb; what went wrong is a sentence on stderr."""
    arguments = parser().parse_args()
    try:
        if arguments.verb == "up":
            up(arguments.name, with_burst=not arguments.no_burst, force=arguments.force)
        else:
            down(arguments.name, force=arguments.force)
    except (ClusterError, CommandFailed, WaitFailed, DemoFailed) as error:
        print(f"\ndemo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\ndemo: interrupted; `{ending(arguments.name)}` removes what was started", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
