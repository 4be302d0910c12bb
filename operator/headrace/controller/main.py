"""Builds an operator and runs it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

import httpx
import kopf

from headrace.api import labels
from headrace.cluster.apply import Applier
from headrace.cluster.client import Client, connect
from headrace.cluster.errors import ApiError, ClusterError, NotFound
from headrace.cluster.events import Recorder
from headrace.cluster.lease import Leader
from headrace.cluster.resources import CUSTOM, ENDPOINT_SLICES, MODELS, PROFILES, SLOS, TENANTS
from headrace.cluster.watch import Watch
from headrace.controller.actor import Actor, Hands
from headrace.controller.children import World
from headrace.controller.chronicle import Chronicle
from headrace.controller.gateways import Gateways
from headrace.controller.health import Signs, Sources, serve
from headrace.controller.measures import Measures
from headrace.controller.models import Models
from headrace.controller.purse import Purse
from headrace.controller.queue import KeyedQueue
from headrace.controller.resync import Resync
from headrace.controller.settings import Settings
from headrace.controller.shared import Notes
from headrace.controller.store import Store
from headrace.controller.tenants import Referenced, Tenants
from headrace.controller.triggers import Triggers, kopf_settings
from headrace.controller.work import Work
from headrace.controller.workers import Workers
from headrace.metrics.history import History

log = logging.getLogger(__name__)

LEASE_NAME = "headrace-operator"
CRD_RETRY_S = 5.0


@dataclass
class Operator:
    """One operator process, its parts wired. Made by `build`."""

    settings: Settings
    client: Client
    http: httpx.AsyncClient
    store: Store
    queue: KeyedQueue[Work]
    leader: Leader
    recorder: Recorder
    resync: Resync
    triggers: Triggers
    workers: Workers
    actor: Actor
    chronicle: Chronicle | None
    slices: Watch
    measures: Measures
    started_at: float

    def signs(self) -> Signs:
        """What /healthz and /readyz show."""
        return Signs(
            leading=self.leader.leading,
            holder=self.leader.holder,
            listed=self.resync.listed.is_set(),
            last_event_at=self.triggers.last_event_at,
            last_reconcile_at=self.workers.last_success_at,
            last_list_at=self.resync.last_attempt_at,
            started_at=self.started_at,
            queued=len(self.queue),
        )

    def sources(self) -> Sources:
        """What the operator's HTTP serves."""
        return Sources(self.signs, self.measures, self.actor.record.lines)

    def loops(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        """What runs as long as the process."""
        loops = [self.leader.run, self.recorder.run, self.resync.run, self.actor.run, self.slices.run]
        if self.chronicle is not None:
            loops.append(self.chronicle.run)
        return [*loops, *([self.workers.run] * self.settings.workers)]


def build(settings: Settings, client: Client, http: httpx.AsyncClient) -> Operator:
    """Wire the parts; nothing runs yet."""
    store, queue, notes, measures = Store(), KeyedQueue[Work](), Notes(), Measures()
    installation = settings.installation
    resync = Resync(client, settings.namespaces, store, queue)
    leader = Leader(client, installation.namespace, LEASE_NAME, settings.identity, on_start=resync.soon)
    applier = Applier(client, settings.manager, leader.check)
    recorder = Recorder(client, settings.identity, leader.check)
    models = Models(store, notes, World(client, applier, recorder), installation, _now)
    tenants, referenced = Tenants(store, notes, applier, _now), Referenced(store, applier, _now)
    selector = f"{labels.SERVICE_NAME}={installation.gateway_service}"
    slices = Watch(client, ENDPOINT_SLICES, [installation.namespace], selector)
    gateways = Gateways(http, slices=slices, port=settings.gateway_state_port, url=settings.gateway_url)
    reconciles = {
        MODELS: models.reconcile,
        TENANTS: tenants.reconcile,
        SLOS: referenced.reconcile_slo,
        PROFILES: referenced.reconcile_profile,
    }
    hands = Hands(leader, queue, recorder, tenants, measures, installation.namespace, settings.manager, Purse(client))
    url = settings.prometheus_url
    operator = Operator(
        settings=settings,
        client=client,
        http=http,
        store=store,
        queue=queue,
        leader=leader,
        recorder=recorder,
        resync=resync,
        triggers=Triggers(store, queue, resync.soon),
        workers=Workers(queue, leader, reconciles, measures),
        actor=Actor(store, notes, gateways, hands),
        chronicle=None if url is None else Chronicle(store, notes, History(url), leader, queue),
        slices=slices,
        measures=measures,
        started_at=time.monotonic(),
    )
    measures.watch("leader", "1 while this process holds the Lease.", lambda: float(leader.leading))
    measures.watch("queued", "Keys that wait or are worked on.", lambda: float(len(queue)))
    return operator


async def run(settings: Settings, stop: asyncio.Event | None = None) -> None:
    """Run an operator until SIGTERM, SIGINT or `stop`. Raises ClusterError where it cannot start."""
    async with await connect(settings.kubeconfig) as client, httpx.AsyncClient(trust_env=False) as http:
        operator = build(settings, client, http)
        server, port = await serve(settings.host, settings.port, operator.sources())
        log.info("operator started", extra={"port": port, "namespaces": ",".join(settings.namespaces)})
        # kopf waits 5 s for tasks that were made after it, so all of ours are made before it
        tasks = [asyncio.create_task(loop()) for loop in operator.loops()]
        try:
            await _until_first_failure(tasks, _kopf(operator, stop))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await operator.leader.release()
            await server.cleanup()
            log.info("operator stopped")


async def _kopf(operator: Operator, stop: asyncio.Event | None) -> None:
    await _wait_for_crds(operator.client, operator.settings.namespaces, stop)
    if stop is not None and stop.is_set():
        return
    await kopf.operator(
        registry=operator.triggers.registry(operator.client.connection),
        identity=cast(Any, operator.settings.identity),  # else kopf asks for a user name, which a bare uid has not
        settings=kopf_settings(),
        standalone=True,
        namespaces=operator.settings.namespaces,
        stop_flag=stop,
    )


async def _until_first_failure(tasks: list[asyncio.Task[None]], main: Coroutine[Any, Any, None]) -> None:
    """Wait for `main`; a loop that ends before it, uncancelled, is a defect and raised here."""
    watched = asyncio.ensure_future(main)
    pending = {watched, *tasks}
    while watched in pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        failed = [task for task in done if task is not watched and not task.cancelled()]
        if failed and watched in pending:
            watched.cancel()
            await asyncio.gather(watched, return_exceptions=True)
            failed[0].result()
            raise RuntimeError("a loop of the operator ended")
    watched.result()


async def _wait_for_crds(client: Client, namespaces: tuple[str, ...], stop: asyncio.Event | None) -> None:
    """kopf ignores for ever what does not exist when it starts, so wait for all kinds and for the right to list."""
    told = False
    while stop is None or not stop.is_set():
        try:
            await _list_kinds(client, namespaces)
            return
        except NotFound:
            message = "custom resources are not installed; install the chart headrace-crds"
        except ApiError as error:
            message = f"custom resources cannot be listed: {error.message}"
        except ClusterError as error:
            message = str(error)
        if not told:
            log.warning("start waited: %s", message)
            told = True
        await asyncio.sleep(CRD_RETRY_S if stop is None else 0.5)


async def _list_kinds(client: Client, namespaces: tuple[str, ...]) -> None:
    """Ends where all kinds can be listed in one of the namespaces. Raises what the last of them said."""
    for namespace in namespaces:
        try:
            for resource in CUSTOM:
                await client.list(resource, namespace)
            return
        except ApiError as error:
            if error.status != 403 or namespace == namespaces[-1]:
                raise


def _now() -> datetime:
    return datetime.now(UTC)
