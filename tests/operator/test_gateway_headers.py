"""What clients read beside the answers: when to come back, since when a model is there; and which series are kept."""

from __future__ import annotations

import asyncio
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.admission.quota import QuotaLedger, Reservation
from headrace.admission.retry import header
from headrace.admission.types import Ask
from headrace.api.model import Model
from headrace.api.tenant import Quota
from headrace.testing.examples import examples
from headrace.testing.fake_engine import FakeEngine
from headrace.testing.fake_world import NAMESPACE, make_model, make_tenant, make_world, serving, set_engines

AUTH = {"authorization": "Bearer key"}
TENANT = ("team-a", "search")
START = 1_800_000_000.0


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.floats(0, 20), min_size=1, max_size=12), st.integers(1, 4))
def test_the_reset_is_never_before_the_retry(gaps: list[float], limit: int) -> None:
    """Whenever a minute's limit refuses, all of it is back no sooner than a try is worth while, as headers say it."""
    book, now = QuotaLedger(), START
    book.configure(TENANT, Quota(requestsPerMinute=limit))
    for gap in gaps:
        now += gap
        answer = book.reserve(TENANT, Ask(1, 1), now)
        left = book.allowances(TENANT, now)[b"requests"]
        assert left.reset_s > 0
        if isinstance(answer, Reservation):
            continue
        wait = answer.error().retry_after
        assert wait is not None and header(wait) <= header(left.reset_s)
        if limit == 1:
            assert header(wait) == header(left.reset_s), "the one charge is all there is to wait for"
        assert isinstance(book.reserve(TENANT, Ask(1, 1), now + header(wait)), Reservation), "and it is worth while"
        return


def test_both_headers_round_up_alike() -> None:
    async def main() -> None:
        world = make_world(tenants=[make_tenant(quota={"requestsPerMinute": 1})])
        async with FakeEngine(tokens_per_s=2000.0) as engine, serving(world) as gateway:
            set_engines(world, engine)
            body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
            answers = [
                await gateway.http.post(gateway.url + "/v1/chat/completions", json=body, headers=AUTH) for _ in range(2)
            ]
            assert [answer.status_code for answer in answers] == [200, 429]
            reset, retry = answers[1].headers["x-ratelimit-reset-requests"], answers[1].headers["retry-after"]
            assert reset == f"{retry}s" and 58 <= int(retry) <= 61

    asyncio.run(main())


@pytest.mark.parametrize("seconds", [0.0, 0.0004, 0.5, 1.0, 1.0004, 59.9996, 60.0])
def test_a_wait_is_rounded_up_to_whole_seconds(seconds: float) -> None:
    assert header(seconds) == max(1, math.ceil(seconds))


def made_at(timestamp: str | None) -> Model:
    model = make_model()
    return model.model_copy(update={"metadata": model.metadata.model_copy(update={"creation_timestamp": timestamp})})


@pytest.mark.parametrize(
    ("timestamp", "created"), [("2026-01-02T03:04:05Z", 1767323045), (None, 0)], ids=["known", "unknown"]
)
def test_a_model_is_listed_with_the_time_of_its_creation(timestamp: str | None, created: int) -> None:
    async def main() -> None:
        async with serving(make_world([made_at(timestamp)])) as gateway:
            listed = (await gateway.http.get(gateway.url + "/v1/models", headers=AUTH)).json()
            one = (await gateway.http.get(gateway.url + "/v1/models/m", headers=AUTH)).json()
        assert listed["data"] == [one]
        assert one == {"id": "m", "object": "model", "created": created, "owned_by": NAMESPACE}

    asyncio.run(main())


def test_series_come_without_the_times_of_their_creation() -> None:
    async def main() -> None:
        world = make_world()
        async with FakeEngine(tokens_per_s=2000.0) as engine, serving(world) as gateway:
            set_engines(world, engine)
            body = {"model": "m", "prompt": "hi", "max_tokens": 2}
            await gateway.http.post(gateway.url + "/v1/completions", json=body, headers=AUTH)
            await gateway.http.post(gateway.url + "/v1/completions", json=body)
            metrics = (await gateway.http.get(gateway.state_url + "/metrics")).text
        assert "headrace_requests_total{" in metrics and "headrace_refused_total{" in metrics
        assert "_created" not in metrics

    asyncio.run(main())
