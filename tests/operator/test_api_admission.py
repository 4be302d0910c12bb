"""What a real API server says to specs: each row is an object as a user applies it, and what the user reads."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from cluster.apionly import ApiServer
from headrace.cli.documents import read
from headrace.cli.main import UsageError

pytestmark = pytest.mark.apiserver

Document = dict[str, Any]
SHA = "0123456789abcdef" * 4
NODE: Document = {
    "gpusPerNode": 8,
    "intraNode": {"bandwidth": "450G", "latency": "2us"},
    "interNode": {"bandwidth": "50G", "latency": "10us"},
}


def document(kind: str, spec: Document, name: str = "x") -> Document:
    return {"apiVersion": "headrace.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def model(name: str = "x", **spec: Any) -> Document:
    return document("Model", {"source": {"uri": "builtin://demo"}, **spec}, name)


def source(uri: str, **more: Any) -> Document:
    return model(source={"uri": uri, **more})


def tenant(name: str = "x", **spec: Any) -> Document:
    return document("Tenant", spec, name)


def slo(**fields: Any) -> Document:
    row = {"name": "chat", "ttft": "500ms", "tpot": "50ms", "maxQueueAge": "250ms", **fields}
    return document("ServiceLevelObjective", {"classes": [row]})


def profile(**spec: Any) -> Document:
    return document("ParallelismProfile", spec)


ACCEPTED = {
    "model of one line": model(),
    "model with a name of 50": model("a" * 50),
    "model with everything": model(
        source={"uri": "hf://org/name@main", "secretRef": {"name": "hf"}},
        runtime={"image": "registry.example/engine:1", "env": [{"name": "A", "value": "b"}]},
        accelerator={"memory": "80Gi"},
        parallelismRef={"name": "tp2"},
        serviceLevelRef={"name": "chat"},
        precision={"dtype": "bfloat16"},
        context={"maxTokens": 8192},
        engine={"maxSequences": 2, "maxBatchTokens": 64, "memoryPercent": 80},
        cache={"scope": "group"},
        replicas=0,
        scaling={"mode": "Auto", "minReplicas": 0, "maxReplicas": 8, "toZeroAfter": "10m", "downAfter": "20s"},
        pod={
            "labels": {"team": "search", "example.com/cost": ""},
            "nodeSelector": {"pool": "gpu"},
            "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "resources": {"requests": {"cpu": "500m"}, "limits": {"cpu": 2, "memory": "1.5Gi"}},
            "imagePullSecrets": [{"name": "registry.example"}],
            "priorityClassName": "high",
        },
    ),
    "model in a claim": source("pvc://models/llama/8b"),
    "model of a hub at a revision": source("hf://Qwen/Qwen3-0.6B@c1899de289a04d12100db370d81485cdf75e47ca"),
    "as many replicas as few": model(scaling={"mode": "Auto", "minReplicas": 2, "maxReplicas": 2}),
    "tenant without a key": tenant(),
    "tenant with everything": tenant(
        apiKeys=[{"name": "ci", "sha256": SHA, "expiresAt": "2027-06-01T00:00:00Z"}],
        models=[{"name": "chat"}],
        classes=["interactive", "batch"],
        cacheGroup="search",
        quota={"requestsPerMinute": 600, "tokensPerMinute": 8192, "maxTokensPerRequest": 8192},
    ),
    "objective with equal targets": slo(e2e="500ms", maxQueueAge="500ms"),
    "objective in mixed units": slo(ttft="1s", maxQueueAge="999ms", e2e="1m"),
    "memory of every spelling": model(
        pod={
            "resources": {
                "requests": {"memory": 1073741824, "cpu": 0, "ephemeral-storage": "0", "example.com/thing": "3"},
                "limits": {"memory": "2e9", "cpu": "1.5", "hugepages-2Mi": "4Mi"},
            }
        }
    ),
    "the most memory": model(accelerator={"memory": "1024Ti"}, pod={"resources": {"limits": {"memory": "1024Ti"}}}),
    "the longest time": model(scaling={"toZeroAfter": "87600h", "downAfter": "315360000s"}),
    "profile of one rank": profile(),
    "profile over two nodes": profile(tensor=16, topology=NODE),
}

REFUSED = {
    "name too long": (model("a" * 51), "metadata.name: Too long: may not be more than 50"),
    "name begins with a digit": (model("7b"), "begin with a letter and not end with -: it names a Service"),
    "name with a dot": (model("llama.8b"), "metadata.name must consist of a-z, 0-9 and -"),
    "tenant's name with a dot": (tenant("a.b"), "metadata.name must consist of a-z, 0-9 and -"),
    "no source": (document("Model", {}), "spec.source: Required value"),
    "unknown field": (model(replica=2), 'unknown field "spec.replica"'),
    "unknown scheme": (source("s3://b/x"), "spec.source.uri: Invalid value: * uri must begin with builtin://, pvc://"),
    "unknown built-in": (source("builtin://big"), "spec.source.uri: * the only built-in model is builtin://demo"),
    "claim without a path": (
        source("pvc://models"),
        "spec.source.uri: * names a claim and a folder in it: pvc://CLAIM",
    ),
    "path that climbs": (source("pvc://models/../x"), "a pvc uri names a claim and a folder in it"),
    "hub without organization": (source("hf://gpt2"), "hf://ORG/NAME or hf://ORG/NAME@REVISION"),
    "token without a hub": (
        source("pvc://models/a", secretRef={"name": "hf"}),
        "spec.source.secretRef: * it goes with an hf:// uri only",
    ),
    "runtime that is not there": (model(runtime={"name": "vllm"}), "spec.runtime.name: Unsupported value: *headrace"),
    "operator's own variable": (
        model(runtime={"env": [{"name": "HEADRACE_X"}]}),
        "spec.runtime.env[0].name: * names that begin with HEADRACE_ are the operator's own",
    ),
    "variable twice": (
        model(runtime={"env": [{"name": "A"}, {"name": "A"}]}),
        'spec.runtime.env[1]: Duplicate value: {"name":"A"}',
    ),
    "accelerator of no memory": (
        model(accelerator={"memory": "0Gi"}),
        "spec.accelerator.memory: * must be more than 0",
    ),
    "accelerator that is a CPU": (model(accelerator={"resource": "cpu", "memory": "1Gi"}), "spec.accelerator.resource"),
    "accelerator counted in resources": (
        model(accelerator={"memory": "80Gi"}, pod={"resources": {"limits": {"nvidia.com/gpu": 2}}}),
        "spec.pod.resources: * must not name the accelerator's resource",
    ),
    "more sequences than tokens": (
        model(engine={"maxSequences": 128, "maxBatchTokens": 64}),
        "spec.engine.maxSequences: * must not exceed maxBatchTokens: each running request takes a token",
    ),
    "memory over the bound": (
        model(engine={"memoryPercent": 99}),
        "spec.engine.memoryPercent * less than or equal to 95",
    ),
    "context of one token": (model(context={"maxTokens": 1}), "spec.context.maxTokens * greater than or equal to 2"),
    "fewest above most": (
        model(scaling={"mode": "Auto", "minReplicas": 3, "maxReplicas": 2}),
        "spec.scaling.minReplicas: * minReplicas must not exceed maxReplicas",
    ),
    "Auto without a bound": (
        model(scaling={"mode": "Auto"}),
        "spec.scaling.maxReplicas: * maxReplicas is required with mode Auto and Advise",
    ),
    "most of zero": (model(scaling={"maxReplicas": 0}), "spec.scaling.maxReplicas * greater than or equal to 1"),
    "Off without quotes": (model(scaling={"mode": False}), 'spec.scaling.mode * must be of type string: "boolean"'),
    "zero time to zero": (model(scaling={"toZeroAfter": "0s"}), "spec.scaling.toZeroAfter: * must be more than 0"),
    "duration in words": (
        model(scaling={"downAfter": "5 minutes"}),
        "spec.scaling.downAfter: * must be a whole number of ms, s, m or h, such as 500ms, 30s, 10m or 1h",
    ),
    "image with blanks": (
        model(runtime={"image": "engine:1 "}),
        "spec.runtime.image: * must be an image's name, such as registry/name:tag",
    ),
    "label that selects gateways": (
        model(pod={"labels": {"app.kubernetes.io/component": "gateway"}}),
        "spec.pod.labels: * app.kubernetes.io/component are the operator's own",
    ),
    "operator's own label": (
        model(pod={"labels": {"headrace.dev/model": "y"}}),
        "spec.pod.labels: * labels with the prefix headrace.dev/",
    ),
    "label that is none": (
        model(pod={"nodeSelector": {"a b": "c"}}),
        "spec.pod.nodeSelector: * a label's key is a name",
    ),
    "label's value that is none": (
        model(pod={"labels": {"team": "a b"}}),
        "spec.pod.labels[team]: * must be empty or consist of letters, digits, -, _ and .",
    ),
    "resource that is no number": (
        model(pod={"resources": {"limits": {"memory": "1 GB"}}}),
        "spec.pod.resources.limits[memory]: * must be a quantity of 0 or more, such as 500m, 2 or 1.5Gi",
    ),
    **{
        f"{kind} of memory {words}": (
            model(pod={"resources": {kind: {"memory": value}}}),
            f"spec.pod.resources.{kind}.[memory]: * must be whole bytes, at least 1Mi and at most 1024Ti, such as 8Gi",
        )
        for kind in ("requests", "limits")
        for words, value in {
            "beyond all sense": "1e30",
            "of an exbibyte": "1Ei",
            "of nothing": "0",
            "without a unit": 80,
            "in thousandths of a byte": "17179869184000m",
        }.items()
    },
    "memory below zero": (
        model(pod={"resources": {"limits": {"memory": "-1Gi"}}}),
        "spec.pod.resources.limits[memory]: * must be a quantity of 0 or more",
    ),
    "fewer CPUs than none": (
        model(pod={"resources": {"requests": {"cpu": -1}}}),
        "spec.pod.resources.requests[cpu]: * must be a quantity of 0 or more",
    ),
    "memory asked for above its limit": (
        model(pod={"resources": {"requests": {"cpu": 1, "memory": "2Gi"}, "limits": {"memory": "1.5Gi"}}}),
        "spec.pod.resources: * requests must not be above limits, resource by resource",
    ),
    "more CPUs than there are": (
        model(pod={"resources": {"limits": {"cpu": "1e30"}}}),
        "spec.pod.resources.limits.[cpu]: * must be at most 4096 CPUs",
    ),
    **{
        f"accelerator's memory {words}": (model(accelerator={"memory": value}), f"spec.accelerator.memory: * {message}")
        for words, value, message in (
            ("beyond all sense", "1e30", "must be a whole number of bytes with one of the units"),
            ("of an exbibyte", "1Ei", "must be a whole number of bytes with one of the units"),
            ("below zero", "-1Gi", "must be a whole number of bytes with one of the units"),
            ("in thousandths", "80000m", "must be a whole number of bytes with one of the units"),
            ("of a fraction", "1.5Gi", "must be a whole number of bytes with one of the units"),
            ("of too many digits", "999999999999Ti", "must be more than 0 and at most 1024Ti"),
            ("without a unit", "80", "must be at least 1Mi of memory"),
        )
    },
    "accelerator without a domain": (
        model(accelerator={"resource": "gpu", "memory": "1Gi"}),
        "spec.accelerator.resource: * must be DOMAIN/NAME, such as nvidia.com/gpu",
    ),
    "time to zero of a century": (
        model(scaling={"toZeroAfter": "999999h"}),
        "spec.scaling.toZeroAfter: * must be more than 0 and at most 87600h",
    ),
    "time that nobody can count": (
        model(scaling={"toZeroAfter": "999999999h"}),
        "spec.scaling.toZeroAfter: * must be more than 0 and at most 87600h",
    ),
    "schedule at an hour that is none": (
        model(scaling={"schedules": [{"name": "night", "start": "24:00", "end": "06:00", "maxReplicas": 1}]}),
        "spec.scaling.schedules[0].start: * must be a time of the wall clock as HH:MM",
    ),
    "schedule of a zone that is none": (
        model(
            scaling={"schedules": [{"name": "a", "start": "22:00", "end": "06:00", "timeZone": "+1", "maxReplicas": 1}]}
        ),
        "spec.scaling.schedules[0].timeZone: * must be an IANA time zone, such as Europe/Berlin",
    ),
    "target in words": (slo(ttft="half a second"), "spec.classes[0].ttft: * must be a whole number of ms, s, m or h"),
    "target without a unit": (slo(ttft="500"), "spec.classes[0].ttft: * must be a whole number of ms, s, m or h"),
    "target of a fraction": (slo(ttft="0.5s"), "spec.classes[0].ttft: * must be a whole number of ms, s, m or h"),
    "link in gigabits": (
        profile(tensor=2, topology={**NODE, "interNode": {"bandwidth": "400Gb", "latency": "1us"}}),
        "spec.topology.interNode.bandwidth: * must be a whole number of bytes with one of the units",
    ),
    "link of a fraction of a microsecond": (
        profile(tensor=2, topology={**NODE, "interNode": {"bandwidth": "1G", "latency": "1.5us"}}),
        "spec.topology.interNode.latency: * must be a whole number of ns, us, ms or s, such as 2us",
    ),
    "reference to no name": (
        model(serviceLevelRef={"name": "Chat"}),
        "spec.serviceLevelRef.name: * must consist of a-z, 0-9 and -",
    ),
    "variable of no name": (
        model(runtime={"env": [{"name": "1A"}]}),
        "spec.runtime.env[0].name: * must consist of letters, digits and _, and not begin with a digit",
    ),
    "key that is no hash": (
        tenant(apiKeys=[{"name": "a", "sha256": "hr-secret"}]),
        "spec.apiKeys[0].sha256: * hex, as `headrace key new`",
    ),
    "key twice": (
        tenant(apiKeys=[{"name": "a", "sha256": SHA}, {"name": "b", "sha256": SHA}]),
        "spec.apiKeys: * two keys have the same sha256",
    ),
    "key that never was": (
        tenant(apiKeys=[{"name": "a", "sha256": SHA, "expiresAt": "tomorrow"}]),
        "spec.apiKeys[0].expiresAt * must be of type date-time",
    ),
    "class twice": (tenant(classes=["a", "a"]), 'spec.classes[1]: Duplicate value: "a"'),
    "request above the minute": (
        tenant(quota={"maxTokensPerRequest": 10, "tokensPerMinute": 9}),
        "spec.quota.maxTokensPerRequest: * must not exceed tokensPerMinute: such a request could never be admitted",
    ),
    "request above the day": (
        tenant(quota={"maxTokensPerRequest": 10, "tokensPerDay": 9}),
        "must not exceed tokensPerDay: such a request could never be admitted",
    ),
    "quota of nothing": (
        tenant(quota={"requestsPerMinute": 0}),
        "spec.quota.requestsPerMinute * greater than or equal",
    ),
    "no class": (document("ServiceLevelObjective", {"classes": []}), "spec.classes: * should have at least 1 items"),
    "target of zero": (slo(tpot="0ms"), "spec.classes[0].tpot: * must be more than 0"),
    "queue age above ttft": (
        slo(maxQueueAge="1s"),
        "spec.classes[0].maxQueueAge: * maxQueueAge 1s exceeds ttft 500ms: a request that old is already late",
    ),
    "whole request before its first token": (slo(e2e="100ms"), "e2e 100ms is shorter than ttft 500ms"),
    "objective above all": (slo(objectivePercent=101), "spec.classes[0].objectivePercent * less than or equal to 100"),
    "uneven nodes": (profile(tensor=12, topology=NODE), "spec.tensor: * nodes share a layer evenly"),
    "link that carries nothing": (
        profile(tensor=2, topology={**NODE, "interNode": {"bandwidth": "0G", "latency": "1us"}}),
        "spec.topology.interNode.bandwidth: * must be more than 0",
    ),
}


def apply(apiserver: ApiServer, namespace: str, given: Document) -> tuple[int, str]:
    """kubectl's exit status and what it said."""
    done = apiserver.kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(given))
    return done.returncode, done.stdout + done.stderr


def says(output: str, expected: str) -> bool:
    """Whether one line holds the parts of `expected`, which `*` separates, in their order."""

    def holds(line: str) -> bool:
        place = 0
        for part in expected.split("*"):
            place = line.find(part.strip(), place)
            if place < 0:
                return False
            place += len(part.strip())
        return True

    return any(holds(line) for line in output.splitlines())


@pytest.mark.parametrize("given", ACCEPTED.values(), ids=ACCEPTED)
def test_good_spec_is_accepted(apiserver: ApiServer, namespace: str, given: Document) -> None:
    status, output = apply(apiserver, namespace, given)
    assert status == 0, output


@pytest.mark.parametrize(("given", "message"), REFUSED.values(), ids=REFUSED)
def test_bad_spec_is_refused_with_its_field_and_reason(
    apiserver: ApiServer, namespace: str, given: Document, message: str
) -> None:
    status, output = apply(apiserver, namespace, given)
    assert status != 0
    assert says(output, message), output
    for raw in ("should match", "evaluation error", "evaluating rule", "no such overload"):
        assert raw not in output, "users read words, not patterns"


@pytest.mark.parametrize(
    ("given", "refused"),
    [pytest.param(given, False, id=name) for name, given in ACCEPTED.items()]
    + [pytest.param(given, True, id=name) for name, (given, _) in REFUSED.items()],
)
def test_file_is_judged_as_the_server_judges(tmp_path: Path, given: Document, refused: bool) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(json.dumps(given))
    with pytest.raises(UsageError) if refused else nullcontext():
        read([str(file)])


def get(apiserver: ApiServer, namespace: str, name: str) -> Document:
    done = apiserver.kubectl("get", name, "-n", namespace, "-o", "json")
    assert done.returncode == 0, done.stderr
    found: Document = json.loads(done.stdout)
    return found


CHANGES = {
    "replicas under Auto": ({"mode": "Auto", "maxReplicas": 4}, {"mode": "Auto", "maxReplicas": 4}, False),
    "replicas under Off": ({}, {}, True),
    "replicas under Advise": ({"mode": "Advise", "maxReplicas": 4}, {"mode": "Advise", "maxReplicas": 4}, True),
    "replicas with Auto at once": ({}, {"mode": "Auto", "maxReplicas": 4}, True),
    "replicas while Auto ends": ({"mode": "Auto", "maxReplicas": 4}, {"mode": "Off", "maxReplicas": 4}, True),
}


@pytest.mark.parametrize(("before", "after", "allowed"), CHANGES.values(), ids=CHANGES)
def test_replicas_may_change_unless_the_autoscaler_decides(
    apiserver: ApiServer, namespace: str, before: Document, after: Document, allowed: bool
) -> None:
    assert apply(apiserver, namespace, model(replicas=1, scaling=before))[0] == 0
    status, output = apply(apiserver, namespace, model(replicas=2, scaling=after))
    assert (status == 0) is allowed, output
    if not allowed:
        assert says(output, "spec.replicas: * replicas may not change while scaling.mode is Auto"), output


@pytest.mark.parametrize(
    ("scaling", "replicas"), [({}, 3), ({"mode": "Auto", "maxReplicas": 4}, 1)], ids=["Off", "Auto"]
)
def test_scale_subresource_obeys_the_mode(
    apiserver: ApiServer, namespace: str, scaling: Document, replicas: int
) -> None:
    assert apply(apiserver, namespace, model(scaling=scaling))[0] == 0
    done = apiserver.kubectl("scale", "model/x", "-n", namespace, "--replicas=3")
    assert (done.returncode == 0) is (replicas == 3), done.stderr
    assert get(apiserver, namespace, "model/x")["spec"]["replicas"] == replicas


def test_absent_fields_are_filled_in(apiserver: ApiServer, namespace: str) -> None:
    assert apply(apiserver, namespace, model())[0] == 0
    spec = get(apiserver, namespace, "model/x")["spec"]
    assert spec["scaling"] == {"mode": "Off", "minReplicas": 1, "toZeroAfter": "10m", "downAfter": "5m", "weight": 1}
    assert spec["engine"] == {"maxSequences": 64, "maxBatchTokens": 2048, "memoryPercent": 90}
    assert spec["replicas"] == 1
    assert "accelerator" not in spec
