"""The pod template of an engine."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from headrace.api import labels
from headrace.api.model import Model, ModelSpec
from headrace.api.slo import SloSpec
from headrace.planning.installation import Installation
from headrace.planning.revision import pod_revision

Manifest = dict[str, Any]

MODELS_DIR = "/models"
SOURCE_DIR = "/source"
DRAIN_WITHOUT_E2E_S = 120  # longest wait for running requests where the objective sets no e2e
PRE_STOP_S = 2  # gateways see that the pod leaves before it stops listening
EXIT_S = 8  # beyond preStop and drain, before kubelet kills
DRAIN_FLAG = "--drain-seconds"
STARTUP_S = 1800  # longest loading
GROUP = 65532  # the images' own; without it containers run in the group root


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """All that a Model's manifests follow from."""

    model: Model
    slo: SloSpec
    installation: Installation
    drain_s: int | None = None  # longest wait of an engine that stops; None: as the objective asks

    @property
    def drain(self) -> int:
        """Seconds that an engine which stops waits for its requests."""
        return drain_seconds(self.slo) if self.drain_s is None else self.drain_s


def pod_labels(inputs: Inputs) -> dict[str, str]:
    """Labels of a Model's pods, the revision apart; the user's cannot replace ours."""
    return {
        **inputs.model.spec.pod.labels,
        labels.MANAGED_BY: labels.MANAGER,
        labels.COMPONENT: labels.ENGINE_COMPONENT,
        **labels.model_selector(inputs.model.metadata.name),
        labels.TRACK: labels.TRACK_STABLE,
        labels.INSTALLATION: inputs.installation.namespace,
    }


def drain_seconds(slo: SloSpec) -> int:
    """How long an engine that stops waits for its requests: the largest e2e target in whole seconds."""
    return max(DRAIN_WITHOUT_E2E_S if c.e2e_s is None else math.ceil(c.e2e_s) for c in slo.classes)


def threads(spec: ModelSpec) -> int | None:
    """Threads of an engine: the CPU limit rounded up; None without a limit."""
    limit = spec.pod.cpu_limit()
    return None if limit is None else max(1, math.ceil(limit))


def pod_template(inputs: Inputs) -> tuple[Manifest, str]:
    """The pod template with its revision label, and the revision."""
    pod: Manifest = {"metadata": {"labels": pod_labels(inputs)}, "spec": _pod_spec(inputs)}
    revision = pod_revision(pod)
    pod["metadata"]["labels"][labels.REVISION] = revision
    return pod, revision


def _pod_spec(inputs: Inputs) -> Manifest:
    pod = inputs.model.spec.pod
    spec: Manifest = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": PRE_STOP_S + inputs.drain + EXIT_S,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "initContainers": [_fetch(inputs)],
        "containers": [_engine(inputs)],
        "volumes": _volumes(inputs.model.spec),
    }
    if pod.node_selector:
        spec["nodeSelector"] = dict(pod.node_selector)
    if pod.tolerations:
        spec["tolerations"] = [dict(toleration) for toleration in pod.tolerations]
    if pod.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": secret.name} for secret in pod.image_pull_secrets]
    if pod.priority_class_name:
        spec["priorityClassName"] = pod.priority_class_name
    return spec


def _volumes(spec: ModelSpec) -> list[Manifest]:
    volumes: list[Manifest] = [{"name": "models", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}]
    if spec.source.claim is not None:
        volumes.append({"name": "source", "persistentVolumeClaim": {"claimName": spec.source.claim, "readOnly": True}})
    return volumes


def _container(inputs: Inputs, name: str, command: list[str], *, writes_models: bool) -> Manifest:
    """What both containers share: image, restricted profile and mounts."""
    spec = inputs.model.spec
    mounts: list[Manifest] = [
        {"name": "models", "mountPath": MODELS_DIR, **({} if writes_models else {"readOnly": True})},
        {"name": "tmp", "mountPath": "/tmp"},
    ]
    if spec.source.claim is not None:
        mounts.append({"name": "source", "mountPath": SOURCE_DIR, "readOnly": True})
    return {
        "name": name,
        "image": spec.runtime.image or inputs.installation.engine_image,
        "imagePullPolicy": "IfNotPresent",
        "command": command,
        "securityContext": {
            "runAsGroup": GROUP,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts,
    }


def _fetch(inputs: Inputs) -> Manifest:
    spec = inputs.model.spec
    command = ["headrace-engine", "fetch", spec.source.uri, "--into", MODELS_DIR]
    if spec.source.claim is not None:
        command += ["--pvc-root", SOURCE_DIR]
    container = _container(inputs, labels.FETCH_CONTAINER, command, writes_models=True)
    env: list[Manifest] = [{"name": "HOME", "value": "/tmp"}]
    if inputs.installation.hub_endpoint and spec.source.scheme == "hf":
        env.append({"name": "HF_ENDPOINT", "value": inputs.installation.hub_endpoint})
    if spec.source.secret_ref is not None:
        secret = spec.source.secret_ref
        env.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": secret.name, "key": secret.key}}})
    return {**container, "env": env, "resources": _resources(spec, with_accelerator=False)}


def _engine(inputs: Inputs) -> Manifest:
    spec = inputs.model.spec
    command = _serve_command(inputs.model, inputs.drain)
    container = _container(inputs, labels.ENGINE_CONTAINER, command, writes_models=False)
    return {
        **container,
        "env": _engine_env(spec),
        "ports": [{"name": "http", "containerPort": labels.ENGINE_PORT, "protocol": "TCP"}],
        "resources": _resources(spec, with_accelerator=True),
        "startupProbe": _probe("/ready", period=1, failures=STARTUP_S, timeout=5),
        "readinessProbe": _probe("/ready", period=2, failures=2, timeout=5),
        "livenessProbe": _probe("/health", period=10, failures=3, timeout=10),
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP_S}}},
    }


def _serve_command(model: Model, drain: int) -> list[str]:
    engine, context = model.spec.engine, model.spec.context
    flags: dict[str, object] = {
        "--served-model-name": model.metadata.name,
        "--host": "0.0.0.0",
        "--port": labels.ENGINE_PORT,
        "--max-sequences": engine.max_sequences,
        "--max-batch-tokens": engine.max_batch_tokens,
        "--memory-percent": engine.memory_percent,
        "--dtype": model.spec.precision.dtype,
        DRAIN_FLAG: drain,
        "--instance": "$(HEADRACE_INSTANCE)",
    }
    if context.max_tokens is not None:
        flags["--max-model-len"] = context.max_tokens
    count = threads(model.spec)
    if count is not None:
        flags["--threads"] = count
    command = ["headrace-engine", "serve", f"{MODELS_DIR}/model"]
    for flag, value in flags.items():
        command += [flag, str(value)]
    return command


def _engine_env(spec: ModelSpec) -> list[Manifest]:
    """Ours but HEADRACE_* may be replaced; the user's in their order, so that `$(NAME)` may name an earlier one."""
    values = {"HOME": "/tmp"}
    count = threads(spec)
    if count is not None:
        values["OMP_NUM_THREADS"] = str(count)
    values |= {var.name: var.value for var in spec.runtime.env if not var.name.startswith("HEADRACE_")}
    instance = {"name": "HEADRACE_INSTANCE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    return [instance, *({"name": name, "value": value} for name, value in values.items())]


def _resources(spec: ModelSpec, *, with_accelerator: bool) -> Manifest:
    amounts: Manifest = {
        str(kind): {name: str(amount) for name, amount in values.items()}
        for kind, values in spec.pod.resources.items()
        if values
    }
    if with_accelerator and spec.accelerator is not None:
        amounts["limits"] = {**amounts.get("limits", {}), spec.accelerator.resource: "1"}
    return amounts


def _probe(path: str, *, period: int, failures: int, timeout: int) -> Manifest:
    return {
        "httpGet": {"path": path, "port": "http"},
        "periodSeconds": period,
        "timeoutSeconds": timeout,
        "failureThreshold": failures,
    }
