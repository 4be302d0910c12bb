"""The built-in model's exact answers from this engine's own runner, in both precisions, together and in chunks."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from headrace_engine.attention.cpu import CpuAttention
from headrace_engine.core.blocks import BlockPool
from headrace_engine.core.scheduler import Limits, Scheduler
from headrace_engine.demo import model_path, oracle_path
from headrace_engine.models.config import read_config
from headrace_engine.models.registry import load
from headrace_engine.runner import kv
from headrace_engine.runner.runner import TorchRunner
from headrace_wire.chat import ChatTokenizer
from headrace_wire.protocol import Sampling, Submit

PROMPTS: list[dict[str, Any]] = json.loads(oracle_path().read_text())["prompts"]
PAGES = 400


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def runner(request: pytest.FixtureRequest) -> TorchRunner:
    config = read_config(model_path())
    attention = CpuAttention(request.param)
    spec = kv.spec(config.shape, PAGES, request.param.itemsize, attention.layout)
    return TorchRunner(
        load(model_path(), config, request.param), attention, spec, kv.allocate(config.shape, PAGES, attention)
    )


@pytest.mark.parametrize(
    ("sequences", "budget"),
    [(1, 2048), (16, 512), (5, 48)],
    ids=["alone", "together", "together-in-chunks"],
)
def test_answers_are_the_oracles(runner: TorchRunner, sequences: int, budget: int) -> None:
    tokenizer = ChatTokenizer.from_folder(model_path())
    limits = Limits(max_sequences=sequences, max_batch_tokens=budget, max_tokens=2048, vocab=tokenizer.size)
    scheduler = Scheduler(limits, BlockPool(PAGES), "00")
    output: dict[str, list[int]] = {}
    for row in PROMPTS[:: 4 if sequences == 1 else 1]:
        tokens = array("i", tokenizer.encode_chat(row["messages"])).tobytes()
        greedy = Sampling(temperature=0.0)
        submit = Submit(id=row["id"], tokens=tokens, sampling=greedy, max_tokens=64, stop_ids=(2,))
        assert scheduler.submit(submit, 0.0) == []
        output[row["id"]] = []
    while scheduler.busy:
        plan = scheduler.plan()
        assert plan is not None
        runner.launch(plan)
        for delta in scheduler.apply(runner.collect()):
            output[delta.id] += delta.tokens
    want = {row["id"]: row["answer"] for row in PROMPTS if row["id"] in output}
    assert {name: tokenizer.decode(tokens[:-1]) for name, tokens in output.items()} == want
