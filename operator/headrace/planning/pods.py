"""What a Model's pods tell: how many are ready, and why the others are not."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from headrace.api import labels
from headrace.planning.reasons import Why
from headrace.planning.template import STARTUP_S
from headrace_wire.shape import DTYPE_BYTES, ModelShape, Termination

Pod = Mapping[str, Any]

_PULL = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
_REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_]{0,98}[A-Za-z0-9])?")  # what a condition may carry
_STARTED_NOT = {"StartError", "ContainerCannotRun"}
_SIZES = ("layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocab", "max_positions")
_LARGEST = 2**31  # of a size in a model's shape
_CONFIG = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}


@dataclass(frozen=True, order=True)
class Problem:
    """Why a pod does not become ready."""

    reason: str
    message: str
    pod: str  # "": none could be made


@dataclass(frozen=True, kw_only=True)
class PodReport:
    """A Model's pods at one moment; pods that terminate count in `terminating` only."""

    revision: str  # the one that is rolled out
    ready: int  # of this revision
    waiting: int  # of this revision, not ready
    older_ready: int
    older: int  # of other revisions, ready ones included
    unschedulable: int  # of this revision: pods without a node, and those that may not even be made
    terminating: int
    problems: tuple[Problem, ...]  # of this revision, the gravest first
    fetched: Termination | None  # what the init container of this revision found
    cold_starts: tuple[float, ...]  # seconds from creation to ready, of this revision's ready pods
    names: tuple[str, ...]  # of this revision's ready pods
    revisions: frozenset[str] = frozenset()  # of the pods that do not terminate

    @property
    def all_ready(self) -> int:
        """Pods that serve, whatever their revision."""
        return self.ready + self.older_ready


def report(pods: Iterable[Pod], revision: str, deployment: Mapping[str, Any] | None = None) -> PodReport:
    """Sort a Model's pods by revision and state; its Deployment tells of pods that could not even be made."""
    terminating, current, older, failed = [], [], [], []
    for pod in pods:
        phase = (pod.get("status") or {}).get("phase")
        if pod["metadata"].get("deletionTimestamp"):
            terminating.append(pod)
        elif phase in ("Succeeded", "Failed"):  # its Deployment has replaced it
            failed += [pod] if phase == "Failed" and revision_of(pod) == revision else []
        elif revision_of(pod) == revision:
            current.append(pod)
        else:
            older.append(pod)
    ready = [pod for pod in current if is_ready(pod)]
    waiting = [pod for pod in current if not is_ready(pod)]
    failed = [pod for pod in failed if all(_created(pod) >= _created(other) for other in current)]
    refused = _refused(deployment)
    found = [*map(problem_of, [*waiting, *failed]), refused]
    problems = sorted(filter(None, found), key=lambda p: (_GRAVITY.get(p.reason, 0), p))
    missing = 0 if refused is None else max(0, _replicas(deployment) - len(current) - len(older))
    return PodReport(
        revision=revision,
        ready=len(ready),
        waiting=len(waiting),
        older_ready=sum(map(is_ready, older)),
        older=len(older),
        unschedulable=missing + sum(1 for p in problems if p.reason == Why.UNSCHEDULABLE.value),
        terminating=len(terminating),
        problems=tuple(problems),
        fetched=_fetched(current),
        cold_starts=tuple(filter(None, map(cold_start_s, ready))),
        names=tuple(sorted(pod["metadata"]["name"] for pod in ready)),
        revisions=frozenset(map(revision_of, [*current, *older])),
    )


def _refused(deployment: Mapping[str, Any] | None) -> Problem | None:
    """Pods that the API server does not let the Deployment make: a quota, a missing PriorityClass, a policy."""
    for condition in ((deployment or {}).get("status") or {}).get("conditions") or ():
        if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
            return Problem(Why.PODS_REFUSED.value, str(condition.get("message", "")), "")
    return None


def _replicas(deployment: Mapping[str, Any] | None) -> int:
    return int(((deployment or {}).get("spec") or {}).get("replicas", 1))


def _created(pod: Pod) -> str:
    return str(pod["metadata"].get("creationTimestamp") or "")


_GRAVITY = {Why.UNSCHEDULABLE.value: 1, Why.CRASH_LOOP.value: 1, Why.POD_FAILED.value: 2}
"""0 = most telling: what an engine wrote itself, a failed pull; then what only says that it does not run."""


def revision_of(pod: Pod) -> str:
    """The pod's revision label."""
    return str((pod["metadata"].get("labels") or {}).get(labels.REVISION, ""))


def is_ready(pod: Pod) -> bool:
    """True where the pod takes requests."""
    return _condition(pod, "Ready").get("status") == "True"


def cold_start_s(pod: Pod) -> float | None:
    """Seconds from the pod's creation until it was ready; None where the present readiness is not its first.

    A readiness that comes later than an engine may take to load is another one: the node was away, or a probe failed.
    """
    became = _condition(pod, "Ready").get("lastTransitionTime")
    created = pod["metadata"].get("creationTimestamp")
    statuses = _statuses(pod, "containerStatuses")
    if not became or not created or any(status.get("restartCount") for status in statuses):
        return None
    started = (((s.get("state") or {}).get("running") or {}).get("startedAt") for s in statuses)
    if any(at and (_time(became) - _time(at)).total_seconds() > STARTUP_S for at in started):
        return None
    return max(0.0, (_time(became) - _time(created)).total_seconds())


def problem_of(pod: Pod) -> Problem | None:
    """Why a pod that is not ready is not; None where it simply takes its time."""
    name = str(pod["metadata"]["name"])
    scheduled = _condition(pod, "PodScheduled")
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        said = str(scheduled.get("message", "")).replace("not found. not found", "not found")  # as schedulers say it
        return Problem(Why.UNSCHEDULABLE.value, said, name)
    for group, container in (
        ("initContainerStatuses", labels.FETCH_CONTAINER),
        ("containerStatuses", labels.ENGINE_CONTAINER),
    ):
        for status in _statuses(pod, group):
            if status.get("name") == container:
                found = _container_problem(status, name)
                if found is not None:
                    return found
    status = pod.get("status") or {}
    if status.get("phase") == "Failed":
        return Problem(Why.POD_FAILED.value, f"{status.get('reason', '')} {status.get('message', '')}".strip(), name)
    return None


def _container_problem(status: Mapping[str, Any], pod: str) -> Problem | None:
    state = status.get("state") or {}
    waiting = state.get("waiting") or {}
    reason = str(waiting.get("reason", ""))
    if reason in _PULL:
        message = f"{status.get('image', '')}: {waiting.get('message') or reason}"
        return Problem(Why.IMAGE_PULL_FAILED.value, message, pod)
    if reason in _CONFIG:
        return Problem(Why.CONTAINER_CONFIG.value, f"{reason}: {waiting.get('message', '')}", pod)
    ended = state.get("terminated") or (status.get("lastState") or {}).get("terminated") or {}
    if not ended or (ended.get("exitCode") == 0 and reason != "CrashLoopBackOff"):
        return None
    return _ending(ended, status, pod)


def _ending(ended: Mapping[str, Any], status: Mapping[str, Any], pod: str) -> Problem:
    """Why a container ended: what it wrote itself, else what the kernel or its exit status says."""
    container, restarts = str(status.get("name")), int(status.get("restartCount") or 0)
    written = read_termination(str(ended.get("message") or ""))
    if written is not None and _REASON.fullmatch(written.reason):
        where = f"{written.file}: " if written.file else ""
        return Problem(written.reason, f"{where}{written.message}", pod)
    if ended.get("reason") == "OOMKilled":
        message = f"container {container} exceeded its memory limit, restarts: {restarts}"
        return Problem(Why.OUT_OF_MEMORY.value, message, pod)
    reason = Why.FETCH_FAILED if container == labels.FETCH_CONTAINER else Why.CRASH_LOOP
    said = f": {ended.get('message', '')}" if ended.get("reason") in _STARTED_NOT else ""
    message = f"container {container} ended with status {ended.get('exitCode')}, restarts: {restarts}{said}"
    return Problem(reason.value, message, pod)


def read_termination(message: str) -> Termination | None:
    """The JSON that an engine container wrote to its termination log; None for anything else.

    An image of the user's choice may have written it, so a shape that cannot be is left out.
    """
    try:
        found = msgspec.json.decode(message, type=Termination)
    except (msgspec.DecodeError, UnicodeError):
        return None
    if found.shape is not None and not plausible(found.shape):
        return msgspec.structs.replace(found, shape=None)
    return found


def plausible(shape: ModelShape) -> bool:
    """True where the arithmetic on a shape ends in numbers."""
    sizes = (getattr(shape, name) for name in _SIZES)
    return (
        all(0 < size < _LARGEST for size in sizes)
        and shape.heads % shape.kv_heads == 0
        and shape.dtype in DTYPE_BYTES
        and len(shape.architecture) <= 100
    )


def _fetched(pods: Sequence[Pod]) -> Termination | None:
    """The newest successful message of an init container."""
    for pod in sorted(pods, key=lambda p: str(p["metadata"].get("creationTimestamp", "")), reverse=True):
        for status in _statuses(pod, "initContainerStatuses"):
            ended = (status.get("state") or {}).get("terminated") or {}
            if status.get("name") == labels.FETCH_CONTAINER and ended.get("exitCode") == 0:
                found = read_termination(str(ended.get("message") or ""))
                if found is not None and found.shape is not None:
                    return found
    return None


def _statuses(pod: Pod, group: str) -> list[Mapping[str, Any]]:
    return list((pod.get("status") or {}).get(group) or ())


def _condition(pod: Pod, kind: str) -> Mapping[str, Any]:
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == kind:
            return dict(condition)
    return {}


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
