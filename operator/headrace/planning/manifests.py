"""A Model's children: Deployment, headless Service, PodDisruptionBudget and NetworkPolicy."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.api import labels
from headrace.api.common import API_VERSION
from headrace.planning.template import Inputs, Manifest, drain_seconds, pod_template

DEPLOYMENT, SERVICE, BUDGET, POLICY = "Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"
OLD_REPLICA_SETS = 2  # kept by the Deployment, for `kubectl rollout undo`
PROGRESS_S = 3600  # after so long without progress the Deployment says so


@dataclass(frozen=True)
class Plan:
    """What a Model's children should be."""

    deployment: Manifest
    others: tuple[Manifest, ...]
    revision: str

    @property
    def children(self) -> tuple[Manifest, ...]:
        """In the order of application: what protects the pods comes before the pods."""
        return (*self.others, self.deployment)


@dataclass(frozen=True, kw_only=True)
class Running:
    """What runs before a plan is carried out."""

    revision: str = ""  # of the Deployment; "" where there is none
    drain_s: int | None = None  # of the Deployment's engines
    pods: frozenset[str] = frozenset()  # revisions of the pods that do not terminate
    serves: bool = True  # a pod of whatever revision is ready

    def idle(self, revision: str) -> bool:
        """Nothing serves, and pods of another revision hold the room that those of `revision` may need."""
        return not self.serves and bool(self.pods - {revision})


def plan(inputs: Inputs, replicas: int, running: Running | None = None) -> Plan:
    """The children of a Model. Beside what runs, an objective that became shorter rolls no pod."""
    running = running or Running()
    template, revision = _template(inputs, running)
    others = (_policy(inputs), _service(inputs), _budget(inputs))
    return Plan(_deployment(inputs, template, replicas, idle=running.idle(revision)), others, revision)


def _template(inputs: Inputs, running: Running) -> tuple[Manifest, str]:
    """The present template as long as nothing but a longer drain than is needed tells it from the planned one."""
    if running.drain_s is not None and running.drain_s > drain_seconds(inputs.slo):
        template, revision = pod_template(replace(inputs, drain_s=running.drain_s))
        if revision == running.revision:
            return template, revision
    return pod_template(inputs)


def owner_reference(inputs: Inputs) -> Manifest:
    """The Model as controlling owner."""
    metadata = inputs.model.metadata
    return {
        "apiVersion": API_VERSION,
        "kind": "Model",
        "name": metadata.name,
        "uid": metadata.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def child_labels(inputs: Inputs) -> dict[str, str]:
    """Labels of every child."""
    return {
        labels.MANAGED_BY: labels.MANAGER,
        **labels.model_selector(inputs.model.metadata.name),
        labels.TRACK: labels.TRACK_STABLE,
        labels.INSTALLATION: inputs.installation.namespace,
    }


def _child(inputs: Inputs, api_version: str, kind: str, spec: Manifest) -> Manifest:
    metadata = inputs.model.metadata
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": metadata.name,
            "namespace": metadata.namespace,
            "labels": child_labels(inputs),
            "ownerReferences": [owner_reference(inputs)],
        },
        "spec": spec,
    }


def _serving(inputs: Inputs) -> dict[str, str]:
    return labels.model_selector(inputs.model.metadata.name)


def _deployment(inputs: Inputs, template: Manifest, replicas: int, *, idle: bool) -> Manifest:
    """`idle`: a rollout takes nothing from anybody, so the old pods leave their room to the new ones at once."""
    selector = {**_serving(inputs), labels.TRACK: labels.TRACK_STABLE}
    unavailable: int | str = "100%" if idle else 0
    spec = {
        "replicas": replicas,
        "revisionHistoryLimit": OLD_REPLICA_SETS,
        "progressDeadlineSeconds": PROGRESS_S,
        "selector": {"matchLabels": selector},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": unavailable, "maxSurge": 1}},
        "template": template,
    }
    return _child(inputs, "apps/v1", DEPLOYMENT, spec)


def _service(inputs: Inputs) -> Manifest:
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": False,
        "selector": _serving(inputs),
        "ports": [{"name": "http", "port": labels.ENGINE_PORT, "targetPort": "http", "protocol": "TCP"}],
    }
    return _child(inputs, "v1", SERVICE, spec)


def _budget(inputs: Inputs) -> Manifest:
    spec = {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": _serving(inputs)},
    }
    return _child(inputs, "policy/v1", BUDGET, spec)


def _policy(inputs: Inputs) -> Manifest:
    installation = inputs.installation
    gateway = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": installation.namespace}},
        "podSelector": {"matchLabels": {labels.COMPONENT: "gateway", labels.INSTALLATION: installation.namespace}},
    }
    peers = [gateway, *([dict(installation.scraper)] if installation.scraper else [])]
    spec = {
        "podSelector": {"matchLabels": _serving(inputs)},
        "policyTypes": ["Ingress"],
        "ingress": [{"from": peers, "ports": [{"port": labels.ENGINE_PORT, "protocol": "TCP"}]}],
    }
    return _child(inputs, "networking.k8s.io/v1", POLICY, spec)
