"""`headrace plan`: the documented exercise, exit statuses, JSON, and bad input in one sentence."""

from __future__ import annotations

import argparse
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.cli import plan
from headrace.cli.main import UsageError

ROOT = Path(__file__).parents[2]
EXERCISE = ("-f", "charts/samples/two-nodes/exercise.yaml", "--config", "charts/samples/two-nodes/llama-70b-shape")


def model(name: str = "chat", **spec: Any) -> dict[str, Any]:
    whole = {"source": {"uri": "builtin://demo"}, **spec}
    return {"apiVersion": "headrace.dev/v1alpha1", "kind": "Model", "metadata": {"name": name}, "spec": whole}


def profile(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "headrace.dev/v1alpha1",
        "kind": "ParallelismProfile",
        "metadata": {"name": "p"},
        "spec": spec,
    }


def run(*flags: str) -> int:
    parser = argparse.ArgumentParser()
    plan.register(parser.add_subparsers())
    arguments = parser.parse_args(["plan", *flags])
    status: int = arguments.run(arguments)
    return status


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)

    def give(*documents: Any, name: str = "m.yaml") -> str:
        text = documents[0] if isinstance(documents[0], str) else yaml.safe_dump_all(documents)
        (tmp_path / name).write_text(text)
        return name

    return give


def test_documented_exercise_prints_what_the_document_shows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert run(*EXERCISE) == 0
    document = Path("docs/planning.md").read_text()
    [shown] = re.findall(r"```text\n(Model tensor-over-nodes\n.*?)```", document, re.DOTALL)
    assert capsys.readouterr().out == shown


def test_documented_exercise_names_the_slow_link(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    run(*EXERCISE, "-o", "json")
    tensor, stages = json.loads(capsys.readouterr().out)
    assert (tensor["model"], tensor["communication"]["slowestLink"]) == ("tensor-over-nodes", "interNode")
    assert (stages["model"], stages["communication"]["slowestLink"]) == ("stage-per-node", "intraNode")
    assert stages["communication"]["prefill"]["seconds"] < tensor["communication"]["prefill"]["seconds"] / 4


def test_the_documented_commands_on_the_samples_work(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    document = (ROOT / "docs/planning.md").read_text()
    commands = re.findall(r"^    headrace plan (-f model\.yaml.*?)(?:  +#.*)?$", document, re.MULTILINE)
    assert len(commands) == 2
    monkeypatch.chdir(ROOT / "charts/samples")
    for command in commands:
        assert run(*command.split()) == 0
        assert "demo" in capsys.readouterr().out


def test_model_that_fits(capsys: pytest.CaptureFixture[str], write: Any) -> None:
    assert run("-f", write(model(pod={"resources": {"limits": {"memory": "1Gi"}}}))) == 0
    said = capsys.readouterr().out
    assert "  Fits: weights 4.1Mi + overhead" in said
    assert "none: there is one rank." in said


def test_model_that_does_not_fit_is_exit_status_1(capsys: pytest.CaptureFixture[str], write: Any) -> None:
    assert run("-f", write(model(pod={"resources": {"limits": {"memory": "256Mi"}}}))) == 1
    assert "WeightsTooLarge: " in capsys.readouterr().out


def test_model_without_a_limit_is_unknown_and_exit_status_0(capsys: pytest.CaptureFixture[str], write: Any) -> None:
    assert run("-f", write(model()), "-o", "json") == 0
    [found] = json.loads(capsys.readouterr().out)
    assert (found["memory"]["verdict"], found["memory"]["fits"]) == ("CapacityUnknown", None)


def test_objects_are_found_over_files_and_others_passed_over(capsys: pytest.CaptureFixture[str], write: Any) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}
    first = write(secret, model(parallelismRef={"name": "p"}), name="a.yaml")
    assert run("-f", first, "-f", write(profile(tensor=2), name="b.yaml")) == 0
    said = capsys.readouterr().out
    assert "2 = tensor 2 x pipeline 1 (p)" in said
    assert "not known: the ParallelismProfile has no topology." in said


def test_standard_input(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(yaml.safe_dump(model("piped"))))
    assert run("-f", "-") == 0
    assert capsys.readouterr().out.startswith("Model piped\n")


def other_namespace() -> dict[str, Any]:
    given = profile()
    given["metadata"]["namespace"] = "other"
    return given


def night(**bounds: int) -> dict[str, Any]:
    return {"name": "night", "start": "22:00", "end": "06:00", **bounds}


AT = "m.yaml, document 1 (Model chat): "
BAD = {
    "unknown field": ([model(engine={"maxSequence": 2})], f"{AT}spec.engine.maxSequence: unknown field"),
    "unknown field in a list": (
        [model(pod={"tolerations": [{"keys": "a"}]})],
        f"{AT}spec.pod.tolerations[0].keys: unknown field",
    ),
    "name of Python": ([model(parallelism_ref={"name": "p"})], f"{AT}spec.parallelism_ref: unknown field"),
    "unknown field beside spec": ([{**model(), "specs": 1}], f"{AT}specs: unknown field"),
    "wrong type": ([model(replicas="two")], f"{AT}spec.replicas: should be a valid integer"),
    "Off without quotes": (
        [model(scaling={"mode": False})],
        f"{AT}spec.scaling.mode: should be 'Auto', 'Advise' or 'Off'",
    ),
    "bad quantity": (
        [model(pod={"resources": {"limits": {"memory": "1 GB"}}})],
        f"{AT}spec.pod.resources.limits.memory: '1 GB' is not a quantity such as 500m, 2 or 1.5Gi",
    ),
    "bad uri": ([model(source={"uri": "s3://a"})], f"{AT}spec.source.uri: uri must begin with builtin://"),
    "no spec": ([{**model(), "spec": None}], f"{AT}spec: is required"),
    "no source": ([{**model(), "spec": {}}], f"{AT}spec.source: is required"),
    "no name": ([{**model(), "metadata": {}}], "m.yaml, document 1 (Model): metadata.name: is required"),
    "name that no Service has": (
        [model("Chat")],
        "m.yaml, document 1 (Model Chat): metadata.name must consist of a-z, 0-9 and -, begin with a letter",
    ),
    "name too long": (
        [model("a" * 51)],
        f"m.yaml, document 1 (Model {'a' * 51}): metadata.name: may not be longer than 50",
    ),
    "Model twice": (
        [model(), model()],
        "m.yaml, document 2 (Model chat): stands in m.yaml, document 1 (Model chat), too",
    ),
    "second document": ([model(), model("b", x=1)], "m.yaml, document 2 (Model b): spec.x: unknown field"),
    "unknown kind": ([{**model(), "kind": "Modell"}], "m.yaml, document 1: kind: Modell is unknown; known: Model,"),
    "other version": (
        [{**model(), "apiVersion": "headrace.dev/v1"}],
        "m.yaml, document 1: apiVersion: headrace.dev/v1 is unknown; known: headrace.dev/v1alpha1",
    ),
    "no object": (["just text"], "m.yaml, document 1: is no Kubernetes object: apiVersion and kind are missing"),
    "no YAML": (["a: [1"], "m.yaml: is not YAML: while parsing a flow sequence"),
    "no Model": ([profile()], "m.yaml: no Model of group headrace.dev"),
    "profile elsewhere": (
        [model(parallelismRef={"name": "p"}), other_namespace()],
        f"{AT}spec.parallelismRef.name: ParallelismProfile p of namespace default is in none of the files",
    ),
    "objective missing": (
        [model(serviceLevelRef={"name": "chat"})],
        f"{AT}spec.serviceLevelRef.name: ServiceLevelObjective chat of namespace default is in none of the files: give",
    ),
    "split that cannot be": (
        [model(parallelismRef={"name": "p"}), profile(tensor=3)],
        f"{AT}spec.parallelismRef: tensor 3 does not divide the model's 4 attention heads",
    ),
    "fewest above most": (
        [model(scaling={"mode": "Auto", "minReplicas": 3, "maxReplicas": 2})],
        f"{AT}spec.scaling.minReplicas: minReplicas must not exceed maxReplicas",
    ),
    "schedule's fewest above its most": (
        [model(scaling={"mode": "Auto", "maxReplicas": 9, "schedules": [night(minReplicas=3, maxReplicas=2)]})],
        f"{AT}spec.scaling.schedules: a schedule's minReplicas must not exceed its maxReplicas; where it lacks one, "
        f"scaling's counts\n{AT}spec.scaling.schedules[0].minReplicas: minReplicas must not exceed maxReplicas",
    ),
    "schedule's fewest above scaling's most": (
        [model(scaling={"mode": "Auto", "maxReplicas": 2, "schedules": [night(minReplicas=3)]})],
        f"{AT}spec.scaling.schedules: a schedule's minReplicas must not exceed its maxReplicas; where it lacks one",
    ),
    "schedule of no bound": (
        [model(scaling={"schedules": [night()]})],
        f"{AT}spec.scaling.schedules[0]: a schedule says minReplicas, maxReplicas or both",
    ),
    "shape unknown": (
        [model(source={"uri": "hf://a/b"})],
        f"{AT}the shape of hf://a/b is not known here: give --config DIR",
    ),
}


@pytest.mark.parametrize(("documents", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_a_sentence_with_file_document_and_field(write: Any, documents: list[Any], message: str) -> None:
    name = write(*documents)
    with pytest.raises(UsageError) as caught:
        run("-f", name)
    assert str(caught.value).startswith(message)
    assert str(caught.value).count("\n") == message.count("\n")


def test_all_that_is_wrong_is_listed_line_by_line(write: Any) -> None:
    name = write(
        model(engine={"maxSequence": 2, "maxBatchToken": 1}),
        model("b", scaling={"mode": "Auto"}, engine={"maxSequences": 128, "maxBatchTokens": 64}),
        model("c"),
    )
    with pytest.raises(UsageError) as caught:
        run("-f", name)
    second = "m.yaml, document 2 (Model b): "
    assert sorted(str(caught.value).splitlines()) == [
        f"{AT}spec.engine.maxBatchToken: unknown field",
        f"{AT}spec.engine.maxSequence: unknown field",
        f"{second}spec.engine.maxSequences: maxSequences must not exceed maxBatchTokens: each running request takes a "
        "token of every step",
        f"{second}spec.scaling.maxReplicas: maxReplicas is required with mode Auto and Advise",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("a: !!int foo", "m.yaml: is not YAML: invalid literal for int", id="tag"),
        pytest.param("[" * 5000, "m.yaml: is not YAML: it is nested too deeply", id="nested"),
    ],
)
def test_yaml_that_breaks_readers_is_a_sentence(write: Any, text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        run("-f", write(text))


def test_dates_that_are_none_are_told_by_their_field(write: Any) -> None:
    text = yaml.safe_dump(model()) + "  scaling: {override: {replicas: 1, until: 2027-02-30}}\n"
    with pytest.raises(UsageError, match=r"spec\.scaling\.override\.until"):
        run("-f", write(text))


def test_unquoted_times_are_text_as_for_kubectl(write: Any) -> None:
    text = (
        yaml.safe_dump(model())
        + """  scaling:
    maxReplicas: 2
    override: {replicas: 1, until: 2027-06-01T18:00:00Z}
    schedules: [{name: day, start: 08:00, end: 18:30, minReplicas: 1}]
"""
    )
    assert run("-f", write(text)) == 0


def test_times_that_no_schema_can_judge_are_all_listed(write: Any) -> None:
    zones = [night(maxReplicas=2) | {"timeZone": "No/Where"}, night(maxReplicas=2) | {"name": "b", "timeZone": "X"}]
    with pytest.raises(UsageError) as caught:
        run("-f", write(model(scaling={"maxReplicas": 2, "schedules": zones})))
    assert [line.split(": ")[1] for line in str(caught.value).splitlines()] == [
        f"spec.scaling.schedules[{index}].timeZone" for index in (0, 1)
    ]


CONFIGS = {
    "no folder": (None, "there/config.json: No such file or directory"),
    "no JSON": ("{", "there/config.json: is not JSON"),
    "no object": ("[]", "there/config.json: is no JSON object"),
    "other architecture": (
        '{"architectures": ["GPT2LMHeadModel"]}',
        "there: config.json: architectures: GPT2LMHeadModel is not supported",
    ),
}


@pytest.mark.parametrize(("text", "message"), CONFIGS.values(), ids=CONFIGS)
def test_bad_model_folder_names_the_file(write: Any, text: str | None, message: str) -> None:
    name = write(model(source={"uri": "hf://a/b"}))
    if text is not None:
        Path("there").mkdir()
        Path("there/config.json").write_text(text)
    with pytest.raises(UsageError) as caught:
        run("-f", name, "--config", "there")
    assert str(caught.value).startswith(message)


def test_missing_file_is_named() -> None:
    with pytest.raises(UsageError, match=r"nowhere\.yaml: No such file or directory"):
        run("-f", "nowhere.yaml")
