"""The operator's log tells when a Model becomes ready or stalled, and why."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.cli.logs import JsonFormatter
from headrace.controller.models import Models
from headrace.controller.shared import ModelNotes


def ready(status: str, reason: str, message: str) -> dict[str, Any]:
    conditions = [
        {"type": "Accepted", "status": "True", "reason": "Accepted", "message": ""},
        {"type": "Ready", "status": status, "reason": reason, "message": message},
    ]
    return {"metadata": {"name": "chat", "namespace": "team-a"}, "status": {"conditions": conditions}}


class Announcing:
    """A Models of which only the announcing is there."""

    def __init__(self) -> None:
        self.held: dict[str, Any] = {}
        self.events: list[str] = []
        self.models = object.__new__(Models)
        self.models._store = SimpleNamespace(get=lambda resource, key: self.held)  # type: ignore[assignment]
        record = SimpleNamespace(record=lambda resource, raw, note: self.events.append(note.reason))
        self.models._recorder = record  # type: ignore[assignment]
        self.notes = ModelNotes()

    def status(self, *condition: str) -> None:
        """The status has been written."""
        self.held = ready(*condition)
        self.models._announce(self.held, self.notes)


def test_each_change_of_readiness_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    told = Announcing()
    with caplog.at_level(logging.INFO, logger="headrace.controller.models"):
        told.status("False", "Starting", "1 of 1 starts")
        told.status("False", "Starting", "1 of 1 still starts")
        told.status("True", "Serving", "1 of 1 serves")
        told.status("True", "Serving", "1 of 1 serves")
        told.status("False", "ImagePull", "the image cannot be pulled")
    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    assert [(line["ready"], line["reason"], line["detail"]) for line in lines] == [
        ("False", "Starting", "1 of 1 starts"),
        ("True", "Serving", "1 of 1 serves"),
        ("False", "ImagePull", "the image cannot be pulled"),
    ]
    for line in lines:
        assert (line["namespace"], line["model"]) == ("team-a", "chat")
        assert (line["level"], line["message"]) == ("info", "a Model's readiness changed")
    assert told.events == ["Serving", "ImagePull"]
