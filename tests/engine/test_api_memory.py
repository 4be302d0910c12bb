"""What a real engine's core holds in memory: the weights once, the pool, and what any core needs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from headrace.testing.engine_process import EngineProcess
from headrace.testing.tiny_tokenizer import tiny_bundle
from headrace_engine.models.mapped import drop_pages
from headrace_engine.models.random import write_checkpoint

MIB = 1 << 20
POOL = 32 * MIB
SLACK = 48 * MIB  # of allocators, between two processes
TINY: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
    "dtype": "bfloat16",
}
LARGE = {**TINY, "vocab_size": 32_000, "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 2}


@dataclass(frozen=True)
class Held:
    """Bytes of a core that has loaded its model and answered."""

    resident: int
    peak: int
    weights: int
    pool: int


async def held(folder: Path, config: dict[str, Any]) -> Held:
    write_checkpoint(folder, config)
    (folder / "tokenizer.json").write_text(tiny_bundle().tokenizer_json)
    limits = ("--threads", "1", "--kv-cache-bytes", str(POOL), "--max-sequences", "4")
    async with EngineProcess(str(folder), "--served-model-name", "m", *limits) as engine:
        async with httpx.AsyncClient(base_url=engine.url, timeout=60) as client:
            body = {"model": "m", "prompt": [1, 2, 3], "max_tokens": 4, "ignore_eos": True}
            assert (await client.post("/v1/completions", json=body)).status_code == 200
            memory = (await client.get("/headrace/v1/info")).json()["memory"]
        found = status(engine.core_pid())
    return Held(found["VmRSS"], found["VmHWM"], memory["weights_bytes"], memory["pool_bytes"])


def status(pid: int) -> dict[str, int]:
    """Bytes of a process by the kernel's names."""
    rows = (row.partition(":") for row in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {name: int(rest.split()[0]) * 1024 for name, _, rest in rows if name.startswith("Vm")}


def test_the_weights_are_held_once(tmp_path: Path) -> None:
    """What a large model's core holds more than a tiny one's are its weights, as they are in the file, and its pool."""

    async def main() -> tuple[Held, Held]:
        return await asyncio.gather(held(tmp_path / "tiny", TINY), held(tmp_path / "large", LARGE))

    tiny, large = asyncio.run(main())
    grown = large.weights - tiny.weights + large.pool - tiny.pool
    assert large.weights > 100 * MIB
    assert large.resident - tiny.resident < grown + SLACK
    assert large.peak - tiny.peak < grown + large.weights + SLACK, "while loading, file and copies side by side"


@pytest.mark.parametrize("linked", [False, True], ids=["files", "links"])
def test_views_of_a_file_outlive_its_pages(tmp_path: Path, linked: bool) -> None:
    store, folder = tmp_path / "store", tmp_path / "model"
    store.mkdir()
    folder.mkdir()
    path = store / ("blob" if linked else "model.safetensors")
    values = torch.arange(1 << 20, dtype=torch.float32)
    save_file({"a": values}, path)
    if linked:
        (folder / "model.safetensors").symlink_to(path)
    with safe_open(folder / "model.safetensors" if linked else path, framework="pt") as file:
        view = file.get_tensor("a")
        assert torch.equal(view, values)
        assert drop_pages(folder if linked else store) >= values.nbytes
        assert torch.equal(view, values)
    assert drop_pages(tmp_path) == 0
