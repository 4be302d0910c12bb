"""The demo's command line: whose cluster it touches, and what it says when it is cut short."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import context
from cluster.addresses import Plan
from cluster.paths import Layout
from cluster.process import Process, start_time
from cluster.record import Record
from demo import __main__ as command
from demo import burst, talk
from demo import up as scenes
from rig import world
from rig.chat import Answer, Endpoint
from rig.install import Key
from rig.kube import ClusterGone, Kube, wait_until

LIVE = Process("etcd", os.getpid(), start_time(os.getpid()) or "")
DEAD = Process("etcd", os.getpid(), "0")


@pytest.fixture
def done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the instances that were taken down, none of them real."""
    names: list[str] = []
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setattr(scenes, "ROOT", tmp_path)
    monkeypatch.setattr(scenes, "SECRETS", tmp_path / ".headrace")
    monkeypatch.setattr(scenes, "close_world", lambda name, releases, namespaces: names.append(name))
    return names


def record(owner: str, process: Process, name: str = "demo") -> None:
    layout = Layout.of(name)
    layout.home.mkdir(parents=True)
    Record(Plan(name, 100), "/kube", "headrace/pause:1", (process,), owner).save(layout.record)


def say(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["demo", *words])
    return command.main()


@pytest.mark.parametrize("verb", ["up", "down"])
def test_cluster_of_another_checkout_is_refused_in_a_sentence(
    verb: str, done: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scenes, "prepare", lambda parts: done.append("prepared"))
    record(str(tmp_path), LIVE)
    assert say(monkeypatch, verb) == 1
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    for words in (f"instance demo was started from {tmp_path} and runs", "--name mine", "ARGS=--force"):
        assert words in said[0]
    assert done == []


@pytest.mark.parametrize(
    ("owner", "process", "words"),
    [
        pytest.param("{other}", LIVE, ("--force",), id="forced"),
        pytest.param("{other}", DEAD, (), id="nothing-runs"),
        pytest.param("{here}", LIVE, (), id="own"),
        pytest.param("/no/such/checkout", LIVE, (), id="checkout-is-gone"),
        pytest.param("", LIVE, (), id="nobody-s"),
    ],
)
def test_down_goes_on_where_nobody_else_would_miss_it(
    owner: str,
    process: Process,
    words: tuple[str, ...],
    done: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record(owner.format(other=tmp_path, here=context.ROOT), process)
    assert say(monkeypatch, "down", *words) == 0
    assert done == ["demo"]


def test_another_name_is_another_cluster(done: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(str(tmp_path), LIVE)
    assert say(monkeypatch, "down", "--name", "mine") == 0
    assert done == ["mine"]


def test_record_without_an_owner_is_read(tmp_path: Path) -> None:
    file = tmp_path / "instance.json"
    made = Record(Plan("demo", 100), "/kube", "headrace/pause:1", (LIVE,), "/some/checkout")
    made.save(file)
    assert Record.load(file) == made
    file.write_text(file.read_text().replace('"owner"', '"unknown"'))
    old = Record.load(file)
    assert old is not None
    assert (old.owner, old.held_by_other(tmp_path)) == ("", False)


def test_interrupt_is_a_sentence_that_tells_what_is_left(
    done: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(parts: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(scenes, "prepare", interrupted)
    assert say(monkeypatch, "up") == 130
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert "make demo-down" in said[0]


def test_key_is_readable_by_its_owner_alone(done: list[str]) -> None:
    kept = scenes.key_file("demo")
    scenes.keep(Key("hr-secret", "0" * 64), kept)
    assert kept.read_text() == "hr-secret\n"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


@pytest.mark.parametrize(("name", "file", "other"), [("demo", "demo-key", "fresh"), ("fresh", "fresh-key", "demo")])
def test_down_removes_the_key_of_its_own_name(
    name: str, file: str, other: str, done: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for one in (name, other):
        scenes.keep(Key(f"hr-{one}", "0" * 64), scenes.key_file(one))
    assert (tmp_path / ".headrace" / file).read_text() == f"hr-{name}\n"
    assert say(monkeypatch, "down", *([] if name == "demo" else ["--name", name])) == 0
    assert [found.name for found in (tmp_path / ".headrace").iterdir()] == [f"{other}-key"]


def test_name_that_leads_out_of_the_folder_is_refused(
    done: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    assert say(monkeypatch, "down", "--name", "../key") == 1
    assert "'../key'" in capsys.readouterr().err
    assert done == []


class Play:
    """A World with a gateway that nobody calls, and a kubectl that says nothing."""

    def __init__(self, found: Kube):
        self.kube, self.images, self.netns = found, None, None

    @contextlib.contextmanager
    def gateway(self, release: str) -> Iterator[str]:
        yield "http://127.0.0.1:4321"

    def endpoint_for_load(self, release: str, url: str, key: str) -> Endpoint:
        return Endpoint(url, key)


@pytest.fixture
def played(done: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that `up` does outside of itself does nothing, and a chat is answered."""
    keys = {tenant: Key(f"hr-{tenant}-secret", "0" * 64) for tenant in ("search", "guest")}
    stands = {
        "check": lambda: None,
        "prepare": lambda kinds: None,
        "open_world": lambda name: Play(kube(tmp_path, "exit 0")),
        "install": lambda *arguments: None,
        "apply_samples": lambda story, found: keys,
    }
    for name, stand in stands.items():
        monkeypatch.setattr(scenes, name, stand)
    answer = Answer(status=200, text="a word", ended=True, ttft_s=0.1, total_s=0.2, tokens=3)
    monkeypatch.setattr(talk, "chat", lambda endpoint, body, on_text: answer)
    monkeypatch.setattr(talk, "refusals", lambda story, search, guest: None)
    monkeypatch.setattr(burst, "offer", lambda story, world, place, endpoint: None)


@pytest.mark.parametrize(("words", "count"), [([], 6), (["--no-burst"], 5)])
def test_steps_that_are_announced_are_those_that_are_counted(
    words: list[str], count: int, played: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert say(monkeypatch, "up", *words) == 0
    told = capsys.readouterr().out
    announced = re.findall(r"^  (\d) (.*?): ", told, re.MULTILINE)
    begun = re.findall(r"^== (\d)/(\d)  (.*)$", told, re.MULTILINE)
    assert [number for number, _ in announced] == [str(number) for number in range(1, count + 1)]
    assert begun == [(number, str(count), title) for number, title in announced]


@pytest.mark.parametrize(("words", "file"), [([], "demo-key"), (["--name", "fresh"], "fresh-key")])
def test_printed_commands_say_what_they_use_and_never_the_key(
    words: list[str],
    file: str,
    played: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert say(monkeypatch, "up", "--no-burst", *words) == 0
    told = capsys.readouterr().out
    assert "secret" not in told
    curl = told.index("$ curl -N $URL")
    for definition in ("$ URL=http://127.0.0.1:4321 ", f"$ KEY=$(cat .headrace/{file})\n"):
        assert 0 <= told.find(definition) < curl
    assert f'"Authorization: Bearer $(cat .headrace/{file})"' in told[curl:]
    assert (tmp_path / ".headrace" / file).read_text() == "hr-search-secret\n"


@pytest.mark.parametrize(
    ("left", "image_store", "stopped", "words"),
    [
        pytest.param(
            [], False, [], ["There is no embedded cluster mine; those that are there, for --name: fresh"], id="none"
        ),
        pytest.param(
            [], True, [], ["There is no embedded cluster mine", "--name mine --purge"], id="image-store-alone"
        ),
        pytest.param(["a mount"], False, ["mine"], ["The embedded cluster mine is gone"], id="half-dead"),
        pytest.param(["all"], True, ["mine"], ["The embedded cluster mine is gone", "--name mine --purge"], id="up"),
    ],
)
def test_closing_says_what_was_there(
    left: list[str],
    image_store: bool,
    stopped: list[str],
    words: list[str],
    done: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(world.instance, "down", calls.append)
    monkeypatch.setattr(world.teardown, "leftovers", lambda plan, layout: left)
    record("", LIVE, "fresh")
    if image_store:
        Layout.of("mine").images.mkdir(parents=True)
    world.close_world("mine", [], [])
    assert calls == stopped
    told = capsys.readouterr().out.splitlines()
    assert len(told) == len(words)
    for line, word in zip(told, words, strict=True):
        assert word in line


def kube(tmp_path: Path, script: str) -> Kube:
    """A Kube whose kubectl and helm are a shell script; its kubeconfig is there."""
    program = ("sh", "-c", script, "sh")
    (tmp_path / "config").touch()
    return Kube(program, program, tmp_path / "config")


def test_kubectl_and_helm_are_told_the_cluster_by_flag(tmp_path: Path) -> None:
    found = kube(tmp_path, 'echo "$@"')
    assert found.run("get", "nodes") == f"--kubeconfig={tmp_path / 'config'} get nodes\n"
    assert found.run_helm("list") == f"--kubeconfig={tmp_path / 'config'} list\n"


def test_list_of_kubeconfigs_is_told_by_the_environment(tmp_path: Path) -> None:
    (tmp_path / "b").touch()
    both = Path(f"{tmp_path / 'a'}:{tmp_path / 'b'}")
    told = Kube(("sh", "-c", 'echo "$KUBECONFIG $@"', "sh"), (), both).run("get", "nodes")
    assert told == f"{both} get nodes\n"


@pytest.mark.parametrize("when", ["before", "during"])
def test_cluster_taken_down_meanwhile_is_a_sentence_and_nothing_else_is_asked(when: str, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    found = kube(tmp_path, f'touch {asked}; rm -f "$KUBECONFIG"; echo localhost:8080 refused >&2; exit 1')
    if when == "before":
        found.kubeconfig.unlink()
    with pytest.raises(ClusterGone, match=r"cluster is gone.* `make demo` starts it anew") as told:
        wait_until("the nodes", lambda: found.run("get", "nodes"), within=60)
    assert len(str(told.value).splitlines()) == 1
    assert "8080" not in str(told.value)
    assert asked.exists() == (when == "during")
