"""A user's cluster: what is asked of it, what is made there, and that nothing else is ever removed."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import binaries
from cluster.apionly import ApiServer
from cluster.errors import ClusterError
from cluster.process import wait_until
from demo import __main__ as demo_command
from rig import __main__ as rig_command
from rig import foreign, install, samples, world
from rig.forward import Forward, answers, free_port
from rig.kube import CommandFailed, Kube

API_VERSION = "headrace.dev/v1alpha1"


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        pytest.param(None, None, id="unset"),
        pytest.param("", None, id="empty"),
        pytest.param("{cache}/state/demo/kubeconfig", None, id="an embedded instance's"),
        pytest.param("{cache}/state/a/kubeconfig:{cache}/state/b/kubeconfig", None, id="two embedded ones'"),
        pytest.param("{home}/config", "{home}/config", id="a file"),
        pytest.param("{home}/none:{home}/config", "{home}/none:{home}/config", id="a list of which one is there"),
        pytest.param(
            "{cache}/state/demo/kubeconfig:{home}/config", "{cache}/state/demo/kubeconfig:{home}/config", id="mixed"
        ),
    ],
)
def test_kubeconfig_is_read_as_kubectl_reads_it(
    named: str | None, expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = {"cache": tmp_path / "cache", "home": tmp_path / "home"}
    places["home"].mkdir()
    (places["home"] / "config").touch()
    monkeypatch.setenv("HEADRACE_CACHE", str(places["cache"]))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    if named is not None:
        monkeypatch.setenv("KUBECONFIG", named.format(**places))
    assert foreign.kubeconfig() == (None if expected is None else Path(expected.format(**places)))
    assert world.parts() == (("binaries", "venv", "images") if expected is None else ("venv",))


def test_kubeconfig_that_is_not_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/no/such/file")
    with pytest.raises(ClusterError, match=r"KUBECONFIG names /no/such/file, which is not there: correct it, or unset"):
        foreign.kubeconfig()


@pytest.mark.parametrize("given", [(), (0,), (1,)], ids=["none", "control plane only", "engine only"])
@pytest.mark.parametrize("command", ["demo", "tests"])
def test_without_images_the_refusal_is_one_sentence_with_the_cure(
    command: str,
    given: tuple[int, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "config").touch()
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    for number, variable in enumerate(foreign.IMAGE_VARIABLES):
        monkeypatch.delenv(variable, raising=False)
        if number in given:
            monkeypatch.setenv(variable, "registry.example/it:1")
    main, verb = (demo_command.main, "up") if command == "demo" else (rig_command.main, "prepare")
    monkeypatch.setattr(sys, "argv", [command, verb])
    assert main() == 1
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1, said
    for word in (*foreign.IMAGE_VARIABLES, "README", "unset KUBECONFIG"):
        assert word in said[0]


def test_no_kubectl_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match="kubectl is not on the PATH: install it"):
        foreign.connect(tmp_path / "config")


def test_port_forward_that_ends_is_started_anew_and_nothing_is_left(tmp_path: Path) -> None:
    """The stand-in for kubectl ends at its first start, as one does whose pod has gone, and serves at the second."""
    mark, port = tmp_path / "starts", free_port()
    program = (
        "import pathlib, socket, sys, time\n"
        f"mark = pathlib.Path({str(mark)!r})\n"
        "starts = mark.read_text() if mark.exists() else ''\n"
        "mark.write_text(starts + 'x')\n"
        "if not starts: sys.exit('lost connection to pod')\n"
        f"with socket.create_server(('127.0.0.1', {port})): time.sleep(600)\n"
    )
    with Forward([sys.executable, "-c", program], os.environ) as kept:
        assert wait_until(lambda: answers(port), 30)
        assert mark.read_text() == "xx"
        assert kept.words == "lost connection to pod"
    assert not answers(port)


class _Finalizer(threading.Thread):
    """What kube-controller-manager does to empty namespaces that are to go: without it they stay for ever."""

    def __init__(self, api: ApiServer):
        super().__init__(daemon=True)
        self._api, self._done = api, threading.Event()

    def run(self) -> None:
        while not self._done.wait(0.2):
            listed = json.loads(self._api.kubectl("get", "namespaces", "-o", "json").stdout or "{}")
            for item in listed.get("items", ()):
                if item["metadata"].get("deletionTimestamp"):
                    item["spec"]["finalizers"] = []
                    path = f"/api/v1/namespaces/{item['metadata']['name']}/finalize"
                    self._api.kubectl("replace", "--raw", path, "-f", "-", stdin=json.dumps(item))

    def end(self) -> None:
        self._done.set()
        self.join()


@pytest.fixture(scope="module")
def api() -> Iterator[ApiServer]:
    with ApiServer() as server:
        finalizer = _Finalizer(server)
        finalizer.start()
        yield server
        finalizer.end()


@pytest.fixture
def kube(api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kube]:
    """The API server as a user's cluster without Headrace: KUBECONFIG names it, kubectl is on the PATH."""
    tools, config = tmp_path / "bin", tmp_path / "config"
    tools.mkdir()
    (tools / "kubectl").symlink_to(binaries.kube())
    (tools / "helm").symlink_to(binaries.helm())
    config.write_text(api.kubeconfig.read_text())
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", str(config))
    yield foreign.connect(config)
    api.kubectl("delete", "crd", *install.DEFINITIONS, "--ignore-not-found")
    api.kubectl("delete", "namespace", "mine", "theirs", "rel-a", "rel-b", "rel-c", "--ignore-not-found")


def namespaces(kube: Kube) -> set[str]:
    return {name.partition("/")[2] for name in kube.run("get", "namespace", "-o", "name").split()}


def definitions(kube: Kube) -> set[str]:
    return set(install.definition_owners(kube))


@pytest.mark.apiserver
def test_cluster_that_does_not_answer_is_a_sentence(kube: Kube, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.write_text(kube.kubeconfig.read_text().replace("https://127.0.0.1:", "https://127.0.0.1:1/"))
    with pytest.raises(ClusterError, match=r"does not answer: correct it, or unset it for an embedded cluster") as told:
        foreign.connect(gone)
    assert len(str(told.value).splitlines()) == 1


@pytest.mark.apiserver
def test_namespace_is_made_once_and_known_as_ours(kube: Kube) -> None:
    assert not install.is_ours(kube, "mine")
    install.make_namespace(kube, "mine")
    assert install.is_ours(kube, "mine")
    install.make_namespace(kube, "mine")
    labels = json.loads(kube.run("get", "namespace", "mine", "-o", "json"))["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


@pytest.mark.apiserver
def test_namespace_of_somebody_else_is_refused_and_left_as_it_is(kube: Kube) -> None:
    kube.run("create", "namespace", "theirs")
    before = kube.run("get", "namespace", "theirs", "-o", "json")
    with pytest.raises(CommandFailed, match="theirs exists already and was not made by this program"):
        install.make_namespace(kube, "theirs")
    assert kube.run("get", "namespace", "theirs", "-o", "json") == before


@pytest.mark.apiserver
def test_definitions_are_brought_once_and_dropped_when_nothing_needs_them(kube: Kube) -> None:
    install.make_namespace(kube, "rel-a")
    for _ in range(2):
        install.install_definitions(kube, "rel-a")
        assert install.definition_owners(kube) == dict.fromkeys(install.DEFINITIONS, "rel-a/headrace-crds")
    assert "had brought" in install.drop_definitions(kube)
    assert definitions(kube) == set()
    assert "none was brought" in install.drop_definitions(kube)


@pytest.mark.apiserver
@pytest.mark.parametrize("by", ["another release", "kubectl apply"])
def test_definitions_that_were_there_are_used_and_stay(by: str, kube: Kube, capsys: pytest.CaptureFixture[str]) -> None:
    install.make_namespace(kube, "rel-b")
    if by == "another release":
        kube.run("create", "namespace", "theirs")
        kube.run_helm("install", "headrace-crds", str(install.CHARTS / "headrace-crds"), "-n", "theirs", "--wait")
    else:
        kube.run("create", "-f", str(install.ROOT / "crds"))
    install.install_definitions(kube, "rel-b")
    owner = "theirs/headrace-crds" if by == "another release" else "somebody"
    assert f"the CustomResourceDefinitions of {owner} are there and are used as they are" in capsys.readouterr().out
    assert "none was brought" in install.drop_definitions(kube)
    assert definitions(kube) == set(install.DEFINITIONS)


@pytest.mark.apiserver
def test_helm_that_was_killed_in_the_middle_is_no_obstacle(kube: Kube, capsys: pytest.CaptureFixture[str]) -> None:
    install.make_namespace(kube, "rel-c")
    install.install_definitions(kube, "rel-c")
    note = "sh.helm.release.v1.headrace-crds.v"
    kept = json.loads(kube.run("get", "secret", f"{note}1", "-n", "rel-c", "-o", "json"))
    labels = {**kept["metadata"]["labels"], "status": "pending-upgrade", "version": "2"}
    begun = {**kept, "metadata": {"name": f"{note}2", "namespace": "rel-c", "labels": labels}}
    kube.apply(begun, namespace="rel-c")
    install.forget_unfinished(kube, "rel-c")
    assert f"a helm that was killed in the middle left secret/{note}2" in capsys.readouterr().out
    assert kube.run("get", "secret", "-n", "rel-c", "-o", "name").split() == [f"secret/{note}1"]
    install.forget_unfinished(kube, "rel-c")
    assert capsys.readouterr().out == ""


@pytest.mark.apiserver
def test_half_of_the_definitions_by_somebody_else_is_a_refusal(kube: Kube) -> None:
    kube.run("create", "-f", str(install.ROOT / "crds" / "models.yaml"))
    with pytest.raises(CommandFailed, match=r"installed by somebody, but lacks servicelevelobjectives\.headrace\.dev"):
        install.install_definitions(kube, "rel-a")
    assert definitions(kube) == {"models.headrace.dev"}


@pytest.mark.apiserver
def test_definitions_we_brought_stay_while_others_use_them(kube: Kube, api: ApiServer) -> None:
    install.make_namespace(kube, "rel-a")
    install.install_definitions(kube, "rel-a")
    kube.run("create", "namespace", "theirs")
    profile = {"apiVersion": API_VERSION, "kind": "ParallelismProfile", "metadata": {"name": "one"}, "spec": {}}
    kube.apply(profile, namespace="theirs")
    assert "objects of their kinds" in install.drop_definitions(kube)
    kube.run("delete", "parallelismprofile", "one", "-n", "theirs")
    kube.apply(_deployment(), namespace="theirs")
    assert "another installation" in install.drop_definitions(kube)
    assert definitions(kube) == set(install.DEFINITIONS)
    kube.run("delete", "deployment", "headrace-operator", "-n", "theirs")
    assert "had brought" in install.drop_definitions(kube)


def _deployment() -> dict[str, object]:
    labels = {"app.kubernetes.io/name": "headrace"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "headrace-operator", "labels": labels},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }


@pytest.mark.apiserver
def test_installation_that_does_not_come_up_tells_what_its_pods_say(kube: Kube) -> None:
    install.make_namespace(kube, "mine")
    kube.run("label", "namespace", "mine", "pod-security.kubernetes.io/enforce=privileged", "--overwrite")
    assert install.last_words(kube, "mine") == "every pod in namespace mine is ready"
    spec = {"containers": [{"name": "operator", "image": "i"}]}
    for name in ("broken", "waiting"):
        kube.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}, namespace="mine")
    state = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    broken = {"name": "operator", "ready": False, "state": state, "image": "i", "imageID": "", "restartCount": 3}
    refused = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/1 nodes are available",
    }
    for name, status in (("broken", {"containerStatuses": [broken]}), ("waiting", {"conditions": [refused]})):
        change = json.dumps({"status": status})
        kube.run("patch", "pod", name, "-n", "mine", "--subresource=status", "--type=merge", "-p", change)
    told = install.last_words(kube, "mine")
    assert re.search(r"pod broken is not ready: .*back-off 10s.*CrashLoopBackOff", told)
    assert re.search(r"pod waiting: .*0/1 nodes are available", told)


@pytest.mark.apiserver
def test_closing_removes_what_we_made_and_nothing_else(kube: Kube, capsys: pytest.CaptureFixture[str]) -> None:
    """Two namespaces of ours go, one of the same list that somebody else made stays, and so does all that was there."""
    before = namespaces(kube)
    kube.run("create", "namespace", "theirs")
    for name in ("rel-a", "mine"):
        install.make_namespace(kube, name)
    install.install_definitions(kube, "rel-a")
    kube.apply(samples.model("demo"), namespace="mine")
    world.close_world("never-an-instance", ["rel-a"], ["mine", "theirs"])
    assert namespaces(kube) == {*before, "theirs"}
    assert wait_until(lambda: definitions(kube) == set(), 30)
    told = capsys.readouterr().out
    assert "namespace mine and all in it" in told
    assert "namespace rel-a and all in it" in told
    assert "theirs" not in told


@pytest.mark.apiserver
def test_closing_where_nothing_was_made_touches_nothing(kube: Kube, capsys: pytest.CaptureFixture[str]) -> None:
    before = namespaces(kube)
    kube.run("create", "-f", str(install.ROOT / "crds"))
    world.close_world("never-an-instance", ["headrace"], ["team-a"])
    assert namespaces(kube) == before
    assert definitions(kube) == set(install.DEFINITIONS)
    assert "nothing of it is there" in capsys.readouterr().out
