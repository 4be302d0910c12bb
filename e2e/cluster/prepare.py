"""Making a machine ready: Debian's packages, then binaries beside images and the Python environment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence

from cluster import binaries, images, packages, venv
from cluster.context import CONTROL_PLANE, ENGINE, ROOT
from cluster.errors import ClusterError
from cluster.progress import say, step

PARTS = ("binaries", "venv", "images")

Task = Callable[[], object]


def prepare(only: Collection[str] = PARTS) -> None:
    """Bring in the named parts; what is in the cache costs seconds.

    Compiling is bound by the processor, packages and images by network and disk: they go side by side.
    """
    with step(
        "setup",
        f"preparing {', '.join(part for part in PARTS if part in only)}",
        "12 to 14 min where nothing is there yet, else seconds",
    ):
        packages.ensure(packages.NEEDED if {"binaries", "images"} & set(only) else ())
        compiled: list[Task] = [lambda: [binaries.build(program) for program in binaries.PROGRAMS]]
        fetched: list[Task] = []
        if "images" in only:
            fetched.append(lambda: images.build(CONTROL_PLANE))
        if "venv" in only:
            fetched.append(venv.ensure)
        if "images" in only:
            fetched.append(lambda: images.build(ENGINE))
        side_by_side([compiled if "binaries" in only else [], fetched])
        if "binaries" in only:
            venv.link_tools(ROOT, {"kubectl": binaries.kube(), "helm": binaries.helm()})


def side_by_side(lanes: Sequence[Sequence[Task]]) -> None:
    """Run each lane's tasks in order, the lanes at once; ClusterError with every lane's failure."""
    failures: list[str] = []

    def work(lane: Sequence[Task]) -> None:
        try:
            for task in lane:
                task()
        except ClusterError as error:
            say("setup", f"a step failed; the others go on: {str(error).splitlines()[0]}")
            failures.append(str(error))

    threads = [threading.Thread(target=work, args=(lane,), daemon=True) for lane in lanes if lane]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise ClusterError("\n".join(failures))
