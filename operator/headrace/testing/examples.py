"""How many examples hypothesis makes, and which.

At a desk they are random, and those that failed are kept and tried first. Where CI is set they are the same in every
run, so that a change is judged by the change and not by chance, and there are more of them. `HEADRACE_EXAMPLES=fuzz`
is for a night: random, and many more. What was ever found stands as an explicit example in the test that found it.
"""

from __future__ import annotations

import os
from enum import Enum

from hypothesis import settings


class Profile(str, Enum):
    """A way of making examples."""

    DESK = "desk"
    CI = "ci"
    FUZZ = "fuzz"

    @property
    def factor(self) -> int:
        """Examples for each that a test asks for."""
        return {Profile.DESK: 1, Profile.CI: 2, Profile.FUZZ: 50}[self]


def chosen() -> Profile:
    """By the environment. Raises ValueError for a name that is none."""
    name = os.environ.get("HEADRACE_EXAMPLES") or ("ci" if os.environ.get("CI") else "desk")
    return Profile(name)


def load() -> None:
    """Makes the chosen profile that of all tests. An example may take its time: neighbours are busy, too."""
    settings.register_profile(Profile.DESK.value, deadline=None)
    settings.register_profile(Profile.CI.value, deadline=None, derandomize=True, print_blob=True)
    settings.register_profile(Profile.FUZZ.value, deadline=None, print_blob=True)
    settings.load_profile(chosen().value)


def examples(count: int) -> int:
    """For `max_examples` of a test that wants `count` at a desk."""
    return count * chosen().factor
