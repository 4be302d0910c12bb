"""Until when a request may wait. Pure; one clock, seconds."""

from __future__ import annotations

from headrace.admission.types import ClassRule

MIN_SHARE = 0.5  # of its slack that a request may always wait, however long its own prefill takes


def latest_start(arrived: float, slack_s: float, prefill_s: float) -> float:
    """The last moment to begin so that the first token comes within the slack.

    A prompt whose own prefill eats the slack is late whatever is done: it keeps half of the slack to wait in.
    """
    return arrived + max(slack_s - prefill_s, slack_s * MIN_SHARE)


def latest(arrived: float, rule: ClassRule, client_s: float | None, prefill_s: float) -> float:
    """The last moment to begin while endpoints exist; the client's deadline can only bring it forward."""
    by_class = latest_start(arrived, rule.ttft_s, prefill_s)
    return by_class if client_s is None else min(by_class, latest_start(arrived, max(0.0, client_s), prefill_s))


def latest_cold(arrived: float, cold_wait_s: float, client_s: float | None) -> float:
    """The last moment to begin for a request that has met no endpoint: a cold start's time, not the class's."""
    return arrived + (cold_wait_s if client_s is None else min(cold_wait_s, max(0.0, client_s)))
