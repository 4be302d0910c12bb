"""The revision of a pod template: equal templates have equal revisions, on every machine and after every restart."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

LENGTH = 10  # hex digits


def pod_revision(template: Mapping[str, Any]) -> str:
    """Hash of a pod template, the revision label left out."""
    data = json.dumps(template, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(data.encode()).hexdigest()[:LENGTH]
