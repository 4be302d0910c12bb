"""A field of the status that somebody else took: the Event says what to run, and running it is enough."""

from __future__ import annotations

import asyncio

from cluster.apionly import ApiServer
from headrace.cluster.client import Object
from headrace.cluster.resources import EVENTS, MODELS
from headrace.testing.running import Bench, bench, running, settings_for


async def told(on: Bench) -> str | None:
    """The note of the Event about a conflict."""
    items, _ = await on.client.list(EVENTS, on.namespace)
    return next((str(item["note"]) for item in items if item["reason"] == "Conflict"), None)


async def taken(on: Bench) -> Object:
    """Somebody writes a field of the status, then the spec changes."""
    body: Object = {"status": {"observedGeneration": 77}}
    await on.client.patch(MODELS.path(on.namespace, "demo", "status"), body, params={"fieldManager": "by-hand"})
    return await on.patch(MODELS, "demo", {"spec": {"engine": {"maxSequences": 7}}})


def test_the_way_back_after_somebody_wrote_the_status(apiserver: ApiServer, namespace: str) -> None:
    async def main() -> None:
        config = str(apiserver.kubeconfig)
        async with bench(config, namespace) as on, running(settings_for(config, namespace)):
            await on.model()
            await on.condition(MODELS, "demo", "Accepted", "True")
            await taken(on)
            note = await on.until("an Event about the conflict", lambda: told(on))
            assert ".status.observedGeneration is owned by field manager 'by-hand'" in note
            assert note.endswith(f"kubectl edit models.headrace.dev demo -n {namespace} --show-managed-fields")
            assert len(note.encode()) < 1024, "nothing of it is cut off"
            model = await on.get(MODELS) or {}
            at = [entry["manager"] for entry in model["metadata"]["managedFields"]].index("by-hand")
            patch = f'[{{"op": "remove", "path": "/metadata/managedFields/{at}"}}]'
            freed = await asyncio.to_thread(
                apiserver.kubectl, "patch", "-n", namespace, MODELS.plural, "demo", "--type=json", "-p", patch
            )
            assert freed.returncode == 0, freed.stderr

            async def follows() -> bool:
                now = await on.get(MODELS) or {}
                return bool(now["status"]["observedGeneration"] == now["metadata"]["generation"])

            await on.until("the status follows the spec again", follows, 40)

    asyncio.run(main())
