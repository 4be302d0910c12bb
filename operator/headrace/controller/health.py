"""The operator's own HTTP: /healthz (does it still work?), /readyz (200 on followers, too), /metrics, and
/debug/decisions (the leader's last scaling decisions as a recording)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from aiohttp import web

from headrace.controller.measures import Measures

STUCK_S = 1000.0  # no LIST has ended for so long, well or not: over three periods


class AddressTaken(OSError):
    """The address of the operator's own HTTP cannot be listened on; the message gives the cure."""


@dataclass(frozen=True)
class Signs:
    """What /healthz shows; times are monotonic seconds, None = never."""

    leading: bool
    holder: str
    listed: bool
    last_event_at: float | None
    last_reconcile_at: float | None
    last_list_at: float | None
    started_at: float
    queued: int

    def alive(self, now: float) -> bool:
        """False where the process should be started anew."""
        return now - (self.last_list_at if self.last_list_at is not None else self.started_at) < STUCK_S

    def as_json(self, now: float) -> Mapping[str, object]:
        """Ages in whole seconds."""

        def age(at: float | None) -> int | None:
            return None if at is None else int(now - at)

        return {
            "leader": self.leading,
            "holder": self.holder,
            "listed": self.listed,
            "lastEventAgeSeconds": age(self.last_event_at),
            "lastReconcileAgeSeconds": age(self.last_reconcile_at),
            "lastListAgeSeconds": age(self.last_list_at),
            "queued": self.queued,
        }


@dataclass(frozen=True)
class Sources:
    """What is served."""

    signs: Callable[[], Signs]
    measures: Measures
    record: Callable[[tuple[str, str] | None], Sequence[str]]  # lines of one Model's decisions, or of all


async def serve(host: str, port: int, sources: Sources) -> tuple[web.AppRunner, int]:
    """Start the server; gives what `cleanup()` ends, and the port that was bound."""

    async def healthz(_: web.Request) -> web.Response:
        now, present = time.monotonic(), sources.signs()
        return web.json_response(present.as_json(now), status=200 if present.alive(now) else 503)

    async def readyz(_: web.Request) -> web.Response:
        present = sources.signs()
        return web.json_response({"listed": present.listed}, status=200 if present.listed else 503)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=sources.measures.render(), headers={"Content-Type": "text/plain; version=0.0.4"})

    async def decisions(request: web.Request) -> web.Response:
        namespace, _, name = request.query.get("model", "").partition("/")
        lines = sources.record((namespace, name) if name else None)
        return web.Response(text="".join(f"{line}\n" for line in lines), content_type="application/x-ndjson")

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/debug/decisions", decisions)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, host, port)
    try:
        await site.start()
    except OSError as error:
        await runner.cleanup()
        raise AddressTaken(f"{host}:{port} cannot be listened on ({error.strerror}); choose another --port") from error
    bound = runner.addresses[0][1]
    return runner, int(bound)
