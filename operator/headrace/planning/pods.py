"""What a Model's pods tell: how many are ready, and why the others are not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from headrace.api import labels
from headrace.planning.reasons import Why
from headrace_wire.shape import Termination

Pod = Mapping[str, Any]

_PULL = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
_CONFIG = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}


@dataclass(frozen=True, order=True)
class Problem:
    """Why a pod does not become ready."""

    reason: str
    message: str
    pod: str


@dataclass(frozen=True, kw_only=True)
class PodReport:
    """A Model's pods at one moment; pods that terminate count in `terminating` only."""

    revision: str  # the one that is rolled out
    ready: int  # of this revision
    waiting: int  # of this revision, not ready
    older_ready: int
    older: int  # of other revisions, ready ones included
    unschedulable: int  # of this revision; part of `waiting`
    terminating: int
    problems: tuple[Problem, ...]  # of this revision, the gravest first
    fetched: Termination | None  # what the init container of this revision found
    cold_starts: tuple[float, ...]  # seconds from creation to ready, of this revision's ready pods
    names: tuple[str, ...]  # of this revision's ready pods

    @property
    def all_ready(self) -> int:
        """Pods that serve, whatever their revision."""
        return self.ready + self.older_ready


def report(pods: Iterable[Pod], revision: str) -> PodReport:
    """Sort a Model's pods by revision and state."""
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
    problems = sorted(filter(None, map(problem_of, [*waiting, *failed])), key=lambda p: (_GRAVITY.get(p.reason, 0), p))
    return PodReport(
        revision=revision,
        ready=len(ready),
        waiting=len(waiting),
        older_ready=sum(map(is_ready, older)),
        older=len(older),
        unschedulable=sum(1 for p in problems if p.reason == Why.UNSCHEDULABLE.value),
        terminating=len(terminating),
        problems=tuple(problems),
        fetched=_fetched(current),
        cold_starts=tuple(filter(None, map(cold_start_s, ready))),
        names=tuple(sorted(pod["metadata"]["name"] for pod in ready)),
    )


_GRAVITY = {Why.UNSCHEDULABLE.value: 1, Why.CRASH_LOOP.value: 1, Why.POD_FAILED.value: 2}
"""0 = most telling: what an engine wrote itself, a failed pull; then what only says that it does not run."""


def revision_of(pod: Pod) -> str:
    """The pod's revision label."""
    return str((pod["metadata"].get("labels") or {}).get(labels.REVISION, ""))


def is_ready(pod: Pod) -> bool:
    """True where the pod takes requests."""
    return _condition(pod, "Ready").get("status") == "True"


def cold_start_s(pod: Pod) -> float | None:
    """Seconds from the pod's creation until it was ready; None if it never restarted into a later readiness."""
    became = _condition(pod, "Ready").get("lastTransitionTime")
    created = pod["metadata"].get("creationTimestamp")
    statuses = _statuses(pod, "containerStatuses")
    if not became or not created or any(status.get("restartCount") for status in statuses):
        return None
    return max(0.0, (_time(became) - _time(created)).total_seconds())


def problem_of(pod: Pod) -> Problem | None:
    """Why a pod that is not ready is not; None where it simply takes its time."""
    name = str(pod["metadata"]["name"])
    scheduled = _condition(pod, "PodScheduled")
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        return Problem(Why.UNSCHEDULABLE.value, str(scheduled.get("message", "")), name)
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
    if not ended or ended.get("exitCode") == 0:
        return None
    return _ending(ended, status, pod)


def _ending(ended: Mapping[str, Any], status: Mapping[str, Any], pod: str) -> Problem:
    """Why a container ended: what it wrote itself, else what the kernel or its exit status says."""
    container, restarts = str(status.get("name")), int(status.get("restartCount") or 0)
    written = read_termination(str(ended.get("message") or ""))
    if written is not None and written.reason:
        where = f"{written.file}: " if written.file else ""
        return Problem(written.reason, f"{where}{written.message}", pod)
    if ended.get("reason") == "OOMKilled":
        message = f"container {container} exceeded its memory limit, restarts: {restarts}"
        return Problem(Why.OUT_OF_MEMORY.value, message, pod)
    reason = Why.FETCH_FAILED if container == labels.FETCH_CONTAINER else Why.CRASH_LOOP
    return Problem(
        reason.value, f"container {container} ended with status {ended.get('exitCode')}, restarts: {restarts}", pod
    )


def read_termination(message: str) -> Termination | None:
    """The JSON that an engine container wrote to its termination log; None for anything else."""
    try:
        return msgspec.json.decode(message, type=Termination)
    except (msgspec.DecodeError, UnicodeError):
        return None


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
