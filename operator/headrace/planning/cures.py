"""What to change, by the reason of a condition: each message that calls for somebody ends with it."""

from __future__ import annotations

from headrace.planning.reasons import Why

_SOURCE = "correct spec.source.uri, or put the model there"
_LOGS = "`kubectl logs POD --all-containers` tells more; what the image and spec.runtime.env say is what runs"
_REPORTS = "the replicas hold meanwhile; look at the pods of headrace-gateway, and at what the message names"

_MORE = (
    "more replicas (spec.scaling.maxReplicas; without the autoscaler, spec.replicas; while an override or a schedule "
    "holds, what it says) or looser targets (spec.classes of the ServiceLevelObjective) would help"
)

NOT_SERVING, AT_ZERO, FROM_ZERO = "Missed, not serving", "Missed, at zero", "Missed, from zero"
HELD_AT_ZERO, WRITTEN_ZERO = "Missed, held at zero", "Missed, zero in the spec"

CURES: dict[str, str] = {
    # what keeps pods from running
    Why.UNSCHEDULABLE.value: "free a node or add one, or change spec.pod (resources, nodeSelector, tolerations) or "
    "spec.accelerator.resource",
    Why.PODS_REFUSED.value: "raise the namespace's quota or change its policy, or change what spec.pod asks for",
    Why.IMAGE_PULL_FAILED.value: "correct spec.runtime.image (or the installation's images.engine); a private registry "
    "needs spec.pod.imagePullSecrets",
    Why.CONTAINER_CONFIG.value: "create what the message names, or correct spec.source.secretRef or spec.runtime",
    Why.FETCH_FAILED.value: _LOGS,
    Why.CRASH_LOOP.value: _LOGS,
    Why.OUT_OF_MEMORY.value: "raise spec.pod.resources.limits.memory, or lower spec.engine.memoryPercent or "
    "spec.context.maxTokens",
    Why.POD_FAILED.value: "its Deployment replaces it; if it recurs, look at the node and at spec.pod.resources",
    # what engines write
    "SourceNotFound": _SOURCE,
    "SourceInvalid": _SOURCE,
    "SourceUnauthorized": "put a token that may read the repository into the Secret of spec.source.secretRef",
    "SourceUnreachable": "let the pods reach the hub (NetworkPolicies, the installation's operator.hubEndpoint), or "
    "take the model from a claim: spec.source.uri pvc://CLAIM/PATH",
    "ModelIncomplete": "complete the folder of spec.source.uri, or name another one",
    "ModelInvalid": "spec.source.uri must name a model of a supported architecture with sound files",
    "ArchitectureUnsupported": "name a model of a supported architecture in spec.source.uri",
    "ConfigInvalid": "the engine's settings contradict each other: change spec.engine, spec.context or spec.precision",
    "AddressInvalid": "leave the engine's address and port to the operator: look at spec.runtime.env",
    "EngineFailed": _LOGS,
    "OutOfDisk": "the node needs more room for emptyDir volumes, or spec.source.uri a claim: pvc://CLAIM/PATH",
    # what engines say once they run
    Why.DIFFERS.value: "use an engine that follows the spec (spec.runtime.image), and nothing in spec.runtime.env that "
    "overrides it",
    Why.NO_REPORT.value: "it passes once a gateway is ready and has asked the engines",
    Why.MISSED.value: _MORE,
    NOT_SERVING: "no replica is ready, which the condition WorkloadReady explains: neither more of them nor looser "
    "spec.classes of the ServiceLevelObjective would help before one is",
    AT_ZERO: "nothing runs, and whoever comes first waits for a cold start: spec.scaling.minReplicas 1 (also of a "
    "schedule that says otherwise) keeps a replica ready",
    HELD_AT_ZERO: "nothing runs, and no request wakes the Model, while what the condition WorkloadReady names holds it "
    "at zero, whatever spec.scaling.minReplicas says: change spec.scaling.override or spec.scaling.schedules, or wait",
    WRITTEN_ZERO: "nothing runs, and no request wakes the Model: spec.replicas 1 (or spec.scaling.mode Auto) brings a "
    "replica back",
    FROM_ZERO: "if it was the cold start from zero, spec.scaling.minReplicas 1 (also of a schedule that says "
    f"otherwise) keeps a replica ready; else {_MORE}",
    # what the autoscaler lacks
    "NoData": _REPORTS,
    Why.STALE.value: _REPORTS,
    "Incomplete": _REPORTS,
    # what keeps a spec from being applied
    Why.INVALID_SPEC.value: "change the spec; where the installed CRDs allow it, the operator is older than they are",
    Why.CONFLICT.value: "stop that manager from writing the field, or take its entry out of metadata.managedFields",
}


def cured(reason: str, message: str) -> str:
    """The message with what to do about it at its end, where there is something to do."""
    return "; ".join(filter(None, (message, cure_of(reason, message))))


def cure_of(reason: str, message: str) -> str:
    """What to do about it; "" where nothing is."""
    if reason == Why.UNSCHEDULABLE.value and "persistentvolumeclaim" in message.lower():
        return _claim(message)
    return CURES.get(reason, "")


def _claim(message: str) -> str:
    """The scheduler's words name the claim that is missing or not bound."""
    verb = "create the claim" if "not found" in message else "bind the claim to a volume"
    return f"{verb}, or name another one in spec.source.uri; the pod is scheduled once it is there"
