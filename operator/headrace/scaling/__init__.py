"""How many replicas: (policy, window of samples, replicas, now) → decision with its reasons. Pure."""

from headrace.scaling.decide import decide
from headrace.scaling.types import Decision, Memory, Policy, Reason, Replicas, Sample

__all__ = ["Decision", "Memory", "Policy", "Reason", "Replicas", "Sample", "decide"]
