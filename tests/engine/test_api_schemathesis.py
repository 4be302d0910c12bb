"""The engine against its own OpenAPI document: schemathesis makes requests from it, good and bad, checks answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from headrace.testing.engine_process import EngineProcess
from headrace_engine.api.openapi import document

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]
EXAMPLES = 20  # of each operation


@pytest.fixture
def url(short_engine: EngineProcess) -> str:
    return short_engine.url


SERVED = schemathesis.openapi.from_dict(json.loads(document()))
OPERATIONS = {operation.label: operation for operation in (found.ok() for found in SERVED.get_all_operations())}


WITH_BODY = [label for label, operation in OPERATIONS.items() if operation.body]
GOOD, BAD = GenerationMode.POSITIVE, GenerationMode.NEGATIVE


def named(case: schemathesis.Case) -> schemathesis.Case:
    """Of the served model: another's name would end every request at once."""
    if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
        case.body["model"] = "demo"
    return case


def answers(url: str, label: str, mode: GenerationMode) -> list[int]:
    """Statuses of requests made from the document, each answer checked against it."""
    statuses: list[int] = []

    @given(OPERATIONS[label].as_strategy(generation_mode=mode).map(named))
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    def check(case: schemathesis.Case) -> None:
        response = case.call(base_url=url, timeout=30)
        case.validate_response(response, checks=CHECKS)
        statuses.append(response.status_code)

    check()
    return statuses


@pytest.mark.parametrize("label", OPERATIONS)
def test_requests_that_the_document_allows(url: str, label: str) -> None:
    """Where they are refused, it is for a rule over two fields."""
    statuses = answers(url, label, GOOD)
    assert label == "GET /v1/models/{name}" or 200 in statuses


@pytest.mark.parametrize("label", WITH_BODY)
def test_requests_that_the_document_forbids(url: str, label: str) -> None:
    statuses = answers(url, label, BAD)
    assert statuses


@pytest.mark.parametrize(
    ("label", "prompt"),
    [
        ("POST /v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("POST /v1/completions", {"prompt": ["<\f\u00d9V\U0010601d", "b"], "echo": True, "logprobs": 1}),
    ],
    ids=["chat", "completion"],
)
def test_streams_are_as_documented(url: str, label: str, prompt: dict[str, Any]) -> None:
    body = {"model": "demo", "stream": True, "max_tokens": 3, "stream_options": {"include_usage": True}, **prompt}
    case = OPERATIONS[label].Case(body=body, media_type="application/json")
    response = case.call(base_url=url, timeout=30)
    case.validate_response(response, checks=CHECKS)
    assert response.status_code == 200
