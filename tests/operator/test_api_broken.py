"""The rules of the API server in Python, for files: each has its twin; what a server admitted is not judged again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.api.broken import broken_rules, sentence
from headrace.api.cel import Rule
from headrace.api.common import ApiType
from headrace.api.crd import KINDS
from headrace.api.model import Model, ModelSpec
from headrace.api.slo import ServiceClass
from headrace.api.source import Source


def subtypes(kind: type[ApiType]) -> Iterator[type[ApiType]]:
    for child in kind.__subclasses__():
        yield child
        yield from subtypes(child)


RULES = [(kind, rule) for kind in subtypes(ApiType) for rule in kind.rules]


def test_every_rule_has_a_twin_unless_it_compares_with_before_or_a_validator_has_it() -> None:
    assert len(KINDS) >= 4
    assert len(RULES) > 15
    without = [(kind, rule) for kind, rule in RULES if rule.holds is None]
    assert all("oldSelf" in rule.rule or (kind is Source and rule.field == ".uri") for kind, rule in without)


def test_what_a_server_admitted_is_parsed_though_it_breaks_a_rule_of_today() -> None:
    spec = {"source": {"uri": "builtin://demo"}, "scaling": {"mode": "Auto", "minReplicas": 3, "maxReplicas": 2}}
    model = Model.model_validate({"metadata": {"name": "x"}, "spec": spec})
    assert list(broken_rules(model.spec, "spec")) == [
        ("spec.scaling.minReplicas", "minReplicas must not exceed maxReplicas")
    ]


@pytest.mark.parametrize(
    "scaling",
    [
        pytest.param({"minReplicas": 3}, id="no-most-under-Off"),
        pytest.param({"maxReplicas": 1, "schedules": []}, id="no-schedules"),
    ],
)
def test_a_bound_that_was_not_given_is_not_compared(scaling: dict[str, object]) -> None:
    spec = ModelSpec.model_validate({"source": {"uri": "builtin://demo"}, "scaling": scaling})
    assert list(broken_rules(spec, "spec")) == []


def test_numbers_stand_in_the_sentence_as_the_server_puts_them() -> None:
    row = ServiceClass(name="chat", ttft="500ms", tpot="50ms", maxQueueAge="1s")
    assert list(broken_rules(row, "spec.classes[0]")) == [
        ("spec.classes[0].maxQueueAge", "maxQueueAge 1s exceeds ttft 500ms: a request that old is already late")
    ]
    assert sentence(Rule("false", "plain"), row) == "plain"
