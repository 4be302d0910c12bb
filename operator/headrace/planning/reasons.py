"""The reasons that stand in conditions and Events."""

from __future__ import annotations

from enum import Enum


class Why(str, Enum):
    """Reasons of conditions, beside those of the memory fit and those that engines write themselves."""

    # Ready
    READY = "Ready"
    PENDING = "Pending"
    OBSERVED = "Observed"
    # Accepted
    VALID = "Valid"
    INVALID_SPEC = "InvalidSpec"
    REFERENCE_NOT_FOUND = "ReferenceNotFound"
    PARALLELISM_UNSUPPORTED = "ParallelismUnsupported"
    PARALLELISM_INVALID = "ParallelismInvalid"
    NAME_TAKEN = "NameTaken"
    APPLY_REFUSED = "ApplyRefused"
    # Tenant
    KEY_IN_USE = "KeyInUse"
    ALL_KEYS_EXPIRED = "AllKeysExpired"
    MODEL_NOT_FOUND = "ModelNotFound"
    CLASS_UNKNOWN = "ClassUnknown"
    ENFORCED = "Enforced"
    NO_GATEWAY = "NoGateway"
    GATEWAY_BEHIND = "GatewayBehind"
    # MemoryFits
    SHAPE_UNKNOWN = "ShapeUnknown"
    # WorkloadReady
    PODS_READY = "PodsReady"
    SCALED_TO_ZERO = "ScaledToZero"
    NOT_APPLIED = "NotApplied"
    STARTING = "Starting"
    ROLLING_OUT = "RollingOut"
    UNSCHEDULABLE = "Unschedulable"
    PODS_REFUSED = "PodsRefused"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    CONTAINER_CONFIG = "ContainerConfigError"
    FETCH_FAILED = "FetchFailed"
    OUT_OF_MEMORY = "OutOfMemory"
    CRASH_LOOP = "CrashLoop"
    POD_FAILED = "PodFailed"
    # EngineConformant
    CONFORMANT = "Conformant"
    DIFFERS = "Differs"
    NO_REPORT = "NoReport"
    NO_ENGINE = "NoEngine"
    # ServiceLevelMet
    MET = "Met"
    MISSED = "Missed"
    NO_TRAFFIC = "NoTraffic"
    # ScalingActive
    ACTIVE = "Active"
    SCALING_OFF = "Off"
    ADVISING = "Advising"
    CONFLICT = "Conflict"
    STALE = "Stale"
