"""What a user may set of the engine's pods and container."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic.config import JsonDict
from typing_extensions import TypedDict

from headrace.api.cel import VALIDATIONS, Cel, Form, Rule, Structural
from headrace.api.common import ApiType, SubdomainName
from headrace.api.quantities import LEAST_MEMORY, MOST_BYTES, resource_amount

LARGEST_AMOUNT = 2**63 - 1  # Kubernetes takes a larger amount for this one
_LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
_LABEL_KEY = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
_LABEL_FORM = "must be empty or consist of letters, digits, -, _ and ., and begin and end with a letter or digit"
_VALUES: JsonDict = {
    "type": "string",
    "maxLength": 63,
    VALIDATIONS: [Rule(f"self.matches(r'{_LABEL_VALUE}')", _LABEL_FORM).as_schema()],
}
_LABELS: JsonDict = {"type": "object", "maxProperties": 32, "additionalProperties": _VALUES}
_AMOUNT_FORM = "must be a quantity of 0 or more, such as 500m, 2 or 1.5Gi"
_MEMORY_RANGE = (
    "must be whole bytes, at least 1Mi and at most 1024Ti, such as 8Gi: "
    "a number without a unit is one of bytes, and m is a thousandth of a byte"
)
_CPU_RANGE = "must be at most 4096 CPUs"
MOST_CPUS = 4096


def _bounded(resource: str, rule: str, message: str) -> JsonDict:
    """A rule about one resource of a map, where it is there and a quantity; {it} is its value as a text."""
    it = f"string(self['{resource}'])"
    guard = f"!('{resource}' in self) || !isQuantity({it})"
    return Rule(f"{guard} || ({rule.format(it=it)})", message, field=f".{resource}").as_schema()


_AMOUNTS: JsonDict = {
    "type": "object",
    "maxProperties": 16,
    "additionalProperties": {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "x-kubernetes-int-or-string": True,
        "maxLength": 32,
        VALIDATIONS: [
            Rule(
                "isQuantity(string(self)) && !quantity(string(self)).isLessThan(quantity('0'))", _AMOUNT_FORM
            ).as_schema()
        ],
    },
    VALIDATIONS: [
        _bounded(
            "memory",
            "!{it}.endsWith('m') && !{it}.endsWith('u') && !{it}.endsWith('n') && "
            "quantity({it}).compareTo(quantity('1Mi')) >= 0 && quantity({it}).compareTo(quantity('1024Ti')) <= 0",
            _MEMORY_RANGE,
        ),
        _bounded("cpu", "quantity({it}).compareTo(quantity('4096')) <= 0", _CPU_RANGE),
    ],
}
_RESOURCES: JsonDict = {
    "type": "object",
    "properties": {
        "requests": {**_AMOUNTS, "description": "What the scheduler sets aside, by resource."},
        "limits": {**_AMOUNTS, "description": "The most that the container gets, by resource."},
    },
}


_WITHIN = (
    "!has(self.requests) || !has(self.limits) || self.requests.all(name, !(name in self.limits) || "
    "!isQuantity(string(self.requests[name])) || !isQuantity(string(self.limits[name])) || "
    "quantity(string(self.requests[name])).compareTo(quantity(string(self.limits[name]))) <= 0)"
)
_WITHIN_FORM = "requests must not be above limits, resource by resource"


def _are_within(resources: Mapping[str, Mapping[str, int | str]]) -> bool:
    requests, limits = resources.get("requests", {}), resources.get("limits", {})
    return all(resource_amount(requests[name]) <= resource_amount(limits[name]) for name in requests.keys() & limits)


def _check_amount(value: int | str) -> int | str:
    if resource_amount(value) < 0:
        raise ValueError(_AMOUNT_FORM)
    return value


def _check_amounts(amounts: dict[str, int | str]) -> dict[str, int | str]:
    memory, cpu = amounts.get("memory"), amounts.get("cpu")
    if memory is not None and (
        str(memory)[-1:] in set("mun") or not LEAST_MEMORY <= resource_amount(memory) <= MOST_BYTES
    ):
        raise ValueError(f"memory: {_MEMORY_RANGE}")
    if cpu is not None and resource_amount(cpu) > MOST_CPUS:
        raise ValueError(f"cpu: {_CPU_RANGE}")
    return amounts


def _is_own(key: str) -> bool:
    return key.startswith("headrace.dev/") or key in ("app.kubernetes.io/managed-by", "app.kubernetes.io/component")


Labels = Annotated[
    dict[str, Annotated[str, Field(max_length=63), Form(_LABEL_VALUE, _LABEL_FORM)]],
    Structural(_LABELS),
    Cel(
        f"self.all(key, key.size() <= 317 && key.matches(r'{_LABEL_KEY}'))",
        "a label's key is a name of at most 63 letters, digits, -, _ and ., with an optional domain/ before it",
        holds=lambda labels: all(len(key) <= 317 and re.fullmatch(_LABEL_KEY, key) for key in labels),
    ),
]
Resources = Annotated[
    dict[
        Literal["requests", "limits"],
        Annotated[dict[str, Annotated[int | str, AfterValidator(_check_amount)]], AfterValidator(_check_amounts)],
    ],
    Structural(_RESOURCES),
    Cel(_WITHIN, _WITHIN_FORM, holds=_are_within),
]


class Toleration(TypedDict, total=False):
    """A taint that the pods tolerate."""

    key: Annotated[str, Field(max_length=317, description="Key of the taint; without it every taint matches.")]
    operator: Annotated[Literal["Exists", "Equal"], Field(description="Exists matches every value. Absent: Equal.")]
    value: Annotated[str, Field(max_length=63, description="Value of the taint, for Equal.")]
    effect: Annotated[
        Literal["NoSchedule", "PreferNoSchedule", "NoExecute"],
        Field(description="Effect of the taint; absent: every effect."),
    ]
    tolerationSeconds: Annotated[int, Field(description="Seconds to stay after a NoExecute taint came.")]


class EnvVar(ApiType):
    """An environment variable."""

    name: Annotated[
        str,
        Field(min_length=1, max_length=128),
        Form(r"^[A-Za-z_][A-Za-z0-9_]*$", "must consist of letters, digits and _, and not begin with a digit"),
        Cel(
            "!self.startsWith('HEADRACE_')",
            "names that begin with HEADRACE_ are the operator's own",
            holds=lambda name: not name.startswith("HEADRACE_"),
        ),
    ] = Field(description="Name of the variable.")
    value: Annotated[str, Field(max_length=4096)] = Field("", description="Its value.")


class SecretRef(ApiType):
    """A reference to a Secret of the same namespace."""

    name: SubdomainName = Field(description="Name of the Secret, in the same namespace.")


class PodSettings(ApiType):
    """What the engine's pods need beyond the defaults."""

    labels: Annotated[
        Labels,
        Cel(
            "self.all(key, !key.startsWith('headrace.dev/') && "
            "!(key in ['app.kubernetes.io/managed-by', 'app.kubernetes.io/component']))",
            "labels with the prefix headrace.dev/, app.kubernetes.io/managed-by and app.kubernetes.io/component are "
            "the operator's own",
            holds=lambda labels: not any(map(_is_own, labels)),
        ),
    ] = Field(default_factory=dict, description="Further labels of the pods.")
    node_selector: Labels = Field(default_factory=dict, description="Labels that a node must have.")
    tolerations: Annotated[list[Toleration], Field(max_length=32)] = Field(
        default_factory=list, description="Taints that the pods tolerate."
    )
    resources: Resources = Field(
        default_factory=dict,
        description="Requests and limits of the engine container, without the accelerator. On a CPU the memory limit "
        "is the capacity of the memory fit, and the CPU limit, rounded up, the number of the engine's threads.",
    )
    image_pull_secrets: Annotated[list[SecretRef], Field(max_length=16)] = Field(
        default_factory=list, description="Secrets for the image registry."
    )
    priority_class_name: SubdomainName | None = Field(None, description="PriorityClass of the pods.")

    def memory_limit(self) -> int | None:
        """Bytes of the container's memory limit, or None."""
        value = self.resources.get("limits", {}).get("memory")
        return None if value is None else min(int(resource_amount(value)), LARGEST_AMOUNT)

    def cpu_limit(self) -> float | None:
        """CPUs of the container's limit, or None."""
        value = self.resources.get("limits", {}).get("cpu")
        return None if value is None else float(resource_amount(value))
