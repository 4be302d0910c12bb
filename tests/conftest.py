"""Where CI is set, hypothesis draws the same examples in every run: a change is judged by the change, not by chance."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
