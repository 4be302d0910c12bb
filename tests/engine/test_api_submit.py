"""A body and its tokens to Submits."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace_engine.api.reading import read_completion
from headrace_engine.api.submit import Fresh, Limits, check_prompt, child_seed, submits, token_bytes
from headrace_wire.protocol import Submit
from headrace_wire.reasons import Reason, RequestError

LIMITS = Limits(context=100, pool=640, vocabulary=50)


def make(tokens: list[int], limits: Limits = LIMITS, **fields: Any) -> list[Submit]:
    body = read_completion(json.dumps({"model": "m", "prompt": "p", **fields}).encode())
    return submits(body, [tokens], limits, eos_ids=(2,), fresh=Fresh("fresh", 7))


def test_defaults() -> None:
    (submit,) = make([1, 2, 3])
    assert submit.id == "fresh"
    assert submit.tokens == b"\1\0\0\0\2\0\0\0\3\0\0\0" == token_bytes([1, 2, 3])
    assert submit.max_tokens == 97
    assert submit.stop_ids == (2,)
    assert (submit.sampling.temperature, submit.sampling.top_p, submit.sampling.top_k) == (1.0, 1.0, 0)
    assert submit.sampling.seed == 7


def test_hints() -> None:
    hints = {"id": "r", "holder": "g", "priority": 5, "ttft_ms": 1.0, "tpot_ms": 2.0, "left_ms": 3.0, "salt": "0aff"}
    (submit,) = make([1], headrace=hints)
    assert (submit.id, submit.holder, submit.priority) == ("r", "g", 5)
    assert (submit.ttft_ms, submit.tpot_ms, submit.left_ms) == (1.0, 2.0, 3.0)
    assert submit.salt == b"\x0a\xff"


@pytest.mark.parametrize("seed", [None, 11], ids=["unseeded", "seeded"])
def test_several_prompts(seed: int | None) -> None:
    """Ids count on; with a seed each prompt is drawn as if alone, without one they differ."""
    fields = {"n": 2, "seed": seed, "echo": True, "logprobs": 3, "headrace": {"id": "r"}}
    body = read_completion(json.dumps({"model": "m", "prompt": "p", **fields}).encode())
    made = submits(body, [[1, 2], [3]], LIMITS, eos_ids=(2,), fresh=Fresh("fresh", 7))
    assert [submit.id for submit in made] == ["r:0", "r:1", "r:2", "r:3"]
    assert [submit.after for submit in made] == ["", "r:0", "", "r:2"]
    assert [submit.tokens for submit in made] == [token_bytes([1, 2])] * 2 + [token_bytes([3])] * 2
    assert [submit.sampling.prompt_logprobs for submit in made] == [3, None, 3, None]
    assert [submit.sampling.logprobs for submit in made] == [3] * 4
    seeds = [submit.sampling.seed for submit in made]
    assert len(set(seeds)) == (4 if seed is None else 2)
    assert seeds[:2] == [child_seed(seed or 7, choice) for choice in range(2)]
    assert seed is None or seeds[2:] == seeds[:2]


def test_a_clients_salt_adds_to_the_gateways() -> None:
    salts = {
        make([1], cache_salt=own, headrace={"salt": gateways})[0].salt
        for own in (None, "a", "b")
        for gateways in ("", "0a", "0b")
    }
    assert len(salts) == 9
    assert make([1], cache_salt=None)[0].salt == b""


def test_an_echo_alone_has_one_token_drawn() -> None:
    (submit,) = make([1, 2], echo=True, max_tokens=0)
    assert submit.max_tokens == 1


def test_choices_have_ids_and_seeds_of_their_own() -> None:
    made = make([1], n=3, seed=11, headrace={"id": "r"})
    assert [submit.id for submit in made] == ["r:0", "r:1", "r:2"]
    seeds = [submit.sampling.seed for submit in made]
    assert seeds[0] == 11
    assert len(set(seeds)) == 3
    assert seeds == [child_seed(11, index) for index in range(3)]
    assert all(0 <= child_seed(-1, index) < 1 << 64 for index in range(3))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (2,)),
        ({"stop_token_ids": [4, 2]}, (2, 4)),
        ({"ignore_eos": True}, ()),
        ({"ignore_eos": True, "stop_token_ids": [4]}, (4,)),
    ],
    ids=["eos", "both", "ignored", "own-only"],
)
def test_stop_ids(fields: dict[str, Any], expected: tuple[int, ...]) -> None:
    assert make([1], **fields)[0].stop_ids == expected


def test_ends_outside_the_vocabulary_are_left_out() -> None:
    body = read_completion(json.dumps({"model": "m", "prompt": [1], "min_tokens": 4, "max_tokens": 5}).encode())
    (made,) = submits(body, [[1]], LIMITS, eos_ids=(3, 99_999, -1, 50), fresh=Fresh("fresh", 7))
    assert made.stop_ids == (3,)


@pytest.mark.parametrize("ids", [[50], [-1], [10**12]], ids=["above", "negative", "huge"])
def test_stop_ids_out_of_range(ids: list[int]) -> None:
    with pytest.raises(RequestError) as caught:
        make([1], stop_token_ids=ids)
    assert caught.value.param == "stop_token_ids"


@pytest.mark.parametrize(
    ("limits", "asked", "expected"),
    [
        (Limits(100, 640, 50), 5, 5),
        (Limits(100, 640, 50), 10**9, 90),
        (Limits(1000, 64, 50), None, 54),
    ],
    ids=["asked", "cut-by-context", "cut-by-pool"],
)
def test_output_limit(limits: Limits, asked: int | None, expected: int) -> None:
    assert make([1] * 10, limits, max_tokens=asked)[0].max_tokens == expected


CHECKS: dict[str, tuple[list[int], Limits, Reason | None, tuple[str, ...]]] = {
    "fits": ([1] * 99, LIMITS, None, ()),
    "fills-the-context": ([1] * 100, LIMITS, Reason.CONTEXT_EXCEEDED, ("100",)),
    "beyond-the-context": ([1] * 300, LIMITS, Reason.CONTEXT_EXCEEDED, ("300", "100")),
    "beyond-the-pool": ([1] * 64, Limits(1000, 64, 50), Reason.CONTEXT_EXCEEDED, ("64",)),
    "no-tokens": ([], LIMITS, Reason.INVALID_REQUEST, ()),
    "beyond-the-vocabulary": ([50], LIMITS, Reason.INVALID_REQUEST, ("49",)),
    "negative": ([-1], LIMITS, Reason.INVALID_REQUEST, ()),
    "huge": ([10**20], LIMITS, Reason.INVALID_REQUEST, ()),
}


@pytest.mark.parametrize(("tokens", "limits", "reason", "numbers"), CHECKS.values(), ids=CHECKS)
def test_prompts(tokens: list[int], limits: Limits, reason: Reason | None, numbers: tuple[str, ...]) -> None:
    if reason is None:
        check_prompt(tokens, limits, "prompt")
        return
    with pytest.raises(RequestError) as caught:
        check_prompt(tokens, limits, "prompt")
    assert (caught.value.reason, caught.value.param) == (reason, "prompt")
    assert all(number in caught.value.message for number in numbers)
