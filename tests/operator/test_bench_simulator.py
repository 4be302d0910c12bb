"""Discrete events: every request ends once, the same seed gives the same, the fast desk chooses as production does."""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np
import pytest

from headrace.admission.types import QueueLimits
from headrace.bench import profile
from headrace.bench.desk import ExactDesk, FastDesk
from headrace.bench.fleet import Pods
from headrace.bench.prefix import PrefixCache
from headrace.bench.profile import Profile
from headrace.bench.replica import Replica
from headrace.bench.request import Clients, Outcome, Request, ServiceClass
from headrace.bench.scalers import Constant, Production, Scraping
from headrace.bench.simulator import Setup, Simulation
from headrace.bench.trace import Blocks, Trace
from headrace.routing.types import Settings
from headrace.scaling.types import ClassPolicy, Policy

H100 = profile.load("h100-8b")
CLASSES = (
    ServiceClass("interactive", 1.0, 0.05, priority=10, share=0.7),
    ServiceClass("batch", 20.0, 0.2, priority=0, share=0.3),
)
SMALL = Profile(
    name="small",
    step_seconds=0.01,
    per_sequence_seconds=0.001,
    per_kv_token_seconds=1e-6,
    per_prefill_token_seconds=1e-4,
    per_prefill_pair_seconds=1e-8,
    kv_tokens=4096,
    max_sequences=8,
    max_batch_tokens=256,
)


class Watcher:
    """Notes what a replica says."""

    def __init__(self) -> None:
        self.first: dict[int, float] = {}
        self.ended: dict[int, float] = {}

    def first_token(self, request: Request, now: float) -> None:
        self.first[request.index] = now

    def finished(self, request: Request, replica: Replica, now: float) -> None:
        self.ended[request.index] = now


def _drain(replica: Replica, watcher: Watcher, until: float = 1e9) -> None:
    while replica.due <= until:
        replica.advance(replica.due, watcher)


def _poisson(rate: float, seconds: float, seed: int, blocks: bool = False) -> Trace:
    random = np.random.default_rng(seed)
    count = int(rate * seconds)
    prompt = random.integers(1, 3000, count)
    kept = None
    if blocks:
        ids = [[0, *random.integers(1, 40, n // 512).tolist()] for n in prompt.tolist()]
        kept = Blocks(np.array([i for part in ids for i in part]), np.cumsum([len(part) for part in ids]))
    arrival = np.sort(random.uniform(0, seconds, count))
    return Trace("poisson", arrival, prompt, random.integers(1, 400, count), seconds, kept)


def _policy(slots: int) -> Policy:
    return Policy(
        min_replicas=1,
        max_replicas=12,
        max_sequences=slots,
        down_after_s=60.0,
        to_zero_after_s=600.0,
        classes=tuple(
            ClassPolicy(
                name=c.name, priority=c.priority, max_queue_age_s=c.ttft_s / 2, ttft_s=c.ttft_s, objective_percent=95
            )
            for c in CLASSES
        ),
    )


def test_one_request_takes_what_the_formula_says() -> None:
    replica, watcher = Replica(1, SMALL, 0.0, 8, False), Watcher()
    replica.submit(Request(0, 0.0, 300, 11, 0), 0.0)
    _drain(replica, watcher)
    first = 0.01 + 256e-4 + 1e-8 * 256 * 256 + (0.01 + 1e-6 * 256 + 44e-4 + 1e-8 * 44 * (512 + 44))
    assert watcher.first[0] == pytest.approx(first)
    decode = sum(0.01 + 0.001 + 1e-6 * (300 + i) for i in range(10))
    assert watcher.ended[0] == pytest.approx(first + decode)
    assert (replica.held, replica.running) == (0, 0)


def test_runs_of_steps_are_steps_one_by_one() -> None:
    """An arrival that cuts a run does not change when the other sequence's tokens come."""
    whole, cut = (Replica(i, SMALL, 0.0, 8, False) for i in range(2))
    seen = [Watcher(), Watcher()]
    for replica in (whole, cut):
        replica.submit(Request(0, 0.0, 100, 200, 0), 0.0)
    whole.advance(whole.due, seen[0])
    cut.advance(cut.due, seen[1])
    ghost = Request(1, 0.5, 1, 1, 0)
    cut.submit(ghost, 0.5)
    boundary = cut.due
    cut.remove(ghost, 0.5)
    _drain(whole, seen[0])
    _drain(cut, seen[1])
    assert 0.5 <= boundary < 0.5 + 0.012
    assert seen[1].ended[0] == pytest.approx(seen[0].ended[0])


def test_a_full_pool_preempts_and_all_still_end() -> None:
    replica, watcher = Replica(1, SMALL, 0.0, 8, False), Watcher()
    for index in range(8):
        replica.submit(Request(index, 0.0, 400, 300, 0), 0.0)
    _drain(replica, watcher)
    assert replica.preemptions > 0
    assert sorted(watcher.ended) == list(range(8))
    assert (replica.held, replica.running, len(replica.prefill)) == (0, 0, 0)


def test_cached_prefixes_are_not_computed_again() -> None:
    replica, watcher = Replica(1, H100, 0.0, 8, True), Watcher()
    times = []
    for index in range(2):
        request = Request(index, replica.due if index else 0.0, 2048, 1, 0)
        request.blocks = np.array([1, 2, 3, 4])
        begun = 0.0 if not index else 1.0
        replica.submit(request, begun)
        _drain(replica, watcher)
        times.append(watcher.ended[index] - begun)
    assert times[1] < times[0] / 4
    assert replica.held == 0


def test_prefix_cache_forgets_the_oldest() -> None:
    cache = PrefixCache()
    cache.insert(np.array([1, 2]), 1024)
    cache.insert(np.array([3, 4]), 1023)  # its second block is not whole
    assert cache.lookup(np.array([1, 2, 9]), 5000) == 1024
    cache.shrink(1024)
    assert len(cache) == 2
    assert (cache.lookup(np.array([3]), 5000), cache.lookup(np.array([1, 2]), 1024)) == (0, 1023)


def _setup(**changes: object) -> Setup:
    trace = _poisson(30.0, 90.0, 3)
    whole = Setup(trace, H100, CLASSES, slots=40, start=2, pods=Pods(cold_start_s=20.0))
    return dataclasses.replace(whole, **changes)  # type: ignore[arg-type]


CASES = {
    "plain": _setup(),
    "short of replicas": _setup(start=1),
    "cancelled and retried": _setup(start=1, clients=Clients(cancel_share=0.3, cancel_after_s=2.0, retries=1)),
    "failing": _setup(pods=Pods(cold_start_s=5.0, failures_per_hour=120.0)),
    "stuck loads": _setup(start=1, pods=Pods(cold_start_s=5.0, stuck_share=0.5, stuck_s=60.0)),
    "no room": _setup(pods=Pods(cold_start_s=5.0, room=2)),
    "prefix blocks": _setup(trace=_poisson(30.0, 60.0, 4, blocks=True)),
    "bounded queue": _setup(start=1, limits=QueueLimits(requests=20)),
    "small pool": _setup(profile=msgspec.structs.replace(H100, kv_tokens=20_000), slots=200),
}


def _run(setup: Setup) -> Simulation:
    scraping = Scraping(delay_s=2.0, gaps=((20.0, 30.0),))
    return Simulation(setup, Production(_policy(setup.slots), scraping)).run()


@pytest.mark.parametrize("setup", CASES.values(), ids=CASES.keys())
def test_every_request_ends_once(setup: Setup) -> None:
    run = _run(setup)
    ledger = run.ledger
    assert ledger.count(Outcome.OPEN) == 0
    assert ledger.ends == len(ledger.outcome) == len(setup.trace) + len(ledger.retried)
    assert all(c.in_flight == 0 for c in run.counts)
    assert len(run.desk.queue) == 0 and not run.waiting
    for replica in run.fleet.ready.values():
        assert (replica.requests, replica.pages, replica.queued) == (0, 0, 0)
        assert (replica.held, replica.running, len(replica.prefill)) == (0, 0, 0)
    ended = sum(sum(c.outcomes.values()) for c in run.counts)
    assert ended == len(ledger.outcome)


def test_cases_do_what_they_are_named_for() -> None:
    runs = {name: _run(CASES[name]) for name in ("cancelled and retried", "failing", "short of replicas", "no room")}
    assert runs["cancelled and retried"].ledger.count(Outcome.CANCELLED) > 50
    assert runs["cancelled and retried"].ledger.retried
    assert runs["failing"].ledger.count(Outcome.ERROR) > 0
    assert runs["short of replicas"].fleet.actions > 0
    assert len(runs["no room"].fleet.ready) <= 2


def test_the_same_seed_gives_the_same() -> None:
    setup = CASES["cancelled and retried"]
    first, second = _run(setup), _run(setup)
    assert first.ledger.outcome == second.ledger.outcome
    assert first.ledger.ttft == second.ledger.ttft
    assert (first.fleet.replica_s, first.events) == (second.fleet.replica_s, second.events)
    other = _run(dataclasses.replace(setup, seed=9))
    assert other.ledger.ended != first.ledger.ended


@pytest.mark.parametrize("name", ["plain", "short of replicas", "failing", "prefix blocks"])
def test_the_fast_desk_serves_as_production_would(name: str) -> None:
    fast = _run(CASES[name])
    exact = _run(dataclasses.replace(CASES[name], exact=True))
    assert fast.ledger.outcome == exact.ledger.outcome
    assert fast.ledger.ttft == exact.ledger.ttft
    assert fast.fleet.replica_s == exact.fleet.replica_s


def test_the_fast_desk_chooses_as_pick_does() -> None:
    random = np.random.default_rng(1)
    limits, settings = QueueLimits(), Settings()
    fast, exact = (kind(H100, CLASSES, limits, settings) for kind in (FastDesk, ExactDesk))
    replicas = [Replica(i, H100, 0.0, 6, False) for i in range(4)]
    for replica, ready in zip(replicas, (0.0, 0.0, 95.0, 99.0), strict=True):
        replica.ready_at = ready
    for desk in (fast, exact):
        desk.set_replicas(replicas)
    chosen, flying = [], []
    for index in range(600):
        request = Request(index, 100.0 - float(random.uniform(0, 2)), int(random.integers(1, 200_000)), 50, 0)
        request.avoid = (1,) if random.random() < 0.2 else ()
        answers = [desk.choose(request, 100.0) for desk in (fast, exact)]
        assert answers[0] is answers[1]
        chosen.append(answers[0])
        if isinstance(answers[0], Replica):
            exact.granted(request, answers[0], 100.0)
            if random.random() < 0.8:
                exact.first_token(request, answers[0], 100.1)
            flying.append((request, answers[0]))
        while flying and random.random() < 0.4:
            done, replica = flying.pop(int(random.integers(len(flying))))
            exact.released(done, replica)
    assert len({id(c) for c in chosen}) == 6  # all four, and both kinds of refusal


def test_a_metric_gap_does_not_scale_down() -> None:
    trace = _poisson(25.0, 200.0, 6)
    setup = Setup(trace, H100, CLASSES, slots=40, start=4, pods=Pods(cold_start_s=20.0))
    scaler = Production(_policy(40), Scraping(gaps=((100.0, 130.0),)))
    Simulation(setup, scaler).run()
    assert not [d for d in scaler.decisions if d.replicas < d.current and 100 <= d.at - 1_700_000_000 < 190]


def test_constant_keeps_its_number() -> None:
    run = Simulation(_setup(), Constant(3)).run()
    assert run.fleet.actions == 1 and len(run.fleet.ready) == 3
