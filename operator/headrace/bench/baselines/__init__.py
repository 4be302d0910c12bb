"""Autoscalers of other projects, each in the form that its project documents, to be compared with."""

from headrace.bench.baselines.base import Baseline, Parameters, Setting
from headrace.bench.baselines.dynamo import Dynamo
from headrace.bench.baselines.hpa import Hpa, Keda
from headrace.bench.baselines.kpa import Apa, Kpa
from headrace.bench.baselines.static import Static
from headrace.bench.baselines.wva import Wva

BASELINES: tuple[type[Baseline], ...] = (Hpa, Keda, Kpa, Apa, Wva, Dynamo, Static)

__all__ = ["BASELINES", "Baseline", "Parameters", "Setting"]
