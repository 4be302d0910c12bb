"""Model folders, whole and broken: each failure names the file, and the tensor or the field."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from headrace_engine.core.failure import StartError
from headrace_engine.models import digest
from headrace_engine.models.config import read_config
from headrace_engine.models.digest import weights_digest
from headrace_engine.models.layers import Parallel
from headrace_engine.models.loader import Weights
from headrace_engine.models.random import write_checkpoint
from headrace_engine.models.registry import load

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "dtype": "bfloat16",
}
Q = "model.layers.0.self_attn.q_proj.weight"


def change_tensors(change: Callable[[dict[str, torch.Tensor]], None]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")

    return damage


def change_config(**fields: Any) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | fields))

    return damage


def truncate(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:100])


DAMAGES = {
    "no-config": (lambda f: (f / "config.json").unlink(), "ModelInvalid", "config.json", "is missing"),
    "config-not-json": (lambda f: (f / "config.json").write_text("{"), "ModelInvalid", "config.json", "cannot be read"),
    "config-a-list": (lambda f: (f / "config.json").write_text("[]"), "ModelInvalid", "config.json", "not a JSON obj"),
    "no-hidden-size": (change_config(hidden_size=None), "ModelInvalid", "config.json", "hidden_size"),
    "unknown-architecture": (
        change_config(architectures=["MambaForCausalLM"]),
        "ArchitectureUnsupported",
        "config.json",
        "MambaForCausalLM",
    ),
    "unknown-rope": (
        change_config(rope_scaling={"rope_type": "yarn", "factor": 2}),
        "ArchitectureUnsupported",
        "config.json",
        "yarn",
    ),
    "unknown-activation": (change_config(hidden_act="gelu"), "ArchitectureUnsupported", "config.json", "hidden_act"),
    "quantized": (
        change_config(quantization_config={"quant_method": "awq"}),
        "ArchitectureUnsupported",
        "config.json",
        "quantization_config",
    ),
    "bad-rope-theta": (change_config(rope_theta=-1), "ModelInvalid", "config.json", "rope_theta"),
    "bad-eps": (change_config(rms_norm_eps="small"), "ModelInvalid", "config.json", "rms_norm_eps"),
    "no-weights": (lambda f: (f / "model.safetensors").unlink(), "ModelInvalid", "model.safetensors", "is missing"),
    "truncated-weights": (truncate, "ModelInvalid", "model.safetensors", "cannot be read"),
    "missing-tensor": (change_tensors(lambda t: t.pop(Q)), "ModelInvalid", "model.safetensors", Q),
    "missing-head": (
        change_tensors(lambda t: t.pop("lm_head.weight")),
        "ModelInvalid",
        "model.safetensors",
        "lm_head.weight",
    ),
    "wrong-shape": (
        change_tensors(lambda t: t.update({Q: torch.zeros(16, 8)})),
        "ModelInvalid",
        "model.safetensors",
        f"{Q} has shape [16, 8], expected [16, 16]",
    ),
}


@pytest.mark.parametrize(("damage", "reason", "file", "words"), DAMAGES.values(), ids=DAMAGES.keys())
def test_a_broken_folder_says_what_is_broken(
    tmp_path: Path, damage: Callable[[Path], None], reason: str, file: str, words: str
) -> None:
    write_checkpoint(tmp_path, CONFIG)
    damage(tmp_path)
    with pytest.raises(StartError) as refused:
        load(tmp_path, read_config(tmp_path), torch.float32)
    assert (refused.value.reason, refused.value.file) == (reason, file)
    assert words in refused.value.message


SHARD = "model-00002-of-00003.safetensors"


def repoint(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    names = json.loads(index.read_text())["weight_map"]
    index.write_text(json.dumps({"weight_map": names | {Q: SHARD, "nowhere.weight": SHARD}}))


@pytest.mark.parametrize(
    ("damage", "file", "words"),
    [
        pytest.param(lambda f: (f / SHARD).unlink(), SHARD, "is missing", id="missing-shard"),
        pytest.param(repoint, SHARD, "is missing", id="index-names-a-tensor-that-is-not-there"),
        pytest.param(
            lambda f: (f / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../x.safetensors"}}'),
            "model.safetensors.index.json",
            "weight_map",
            id="index-points-outside",
        ),
        pytest.param(
            lambda f: (f / "model.safetensors.index.json").write_text("{}"),
            "model.safetensors.index.json",
            "cannot be read",
            id="index-without-map",
        ),
    ],
)
def test_a_broken_index_says_what_is_broken(
    tmp_path: Path, damage: Callable[[Path], None], file: str, words: str
) -> None:
    write_checkpoint(tmp_path, CONFIG, shards=3)
    damage(tmp_path)
    with pytest.raises(StartError) as refused:
        load(tmp_path, read_config(tmp_path), torch.float32)
    assert (refused.value.reason, refused.value.file) == ("ModelInvalid", file)
    assert words in refused.value.message


def test_shards_hold_what_the_single_file_holds(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "one", CONFIG, seed=5)
    write_checkpoint(tmp_path / "many", CONFIG, seed=5, shards=3)
    with Weights(tmp_path / "one", torch.bfloat16) as one, Weights(tmp_path / "many", torch.bfloat16) as many:
        assert torch.equal(one.get(Q, 16, 16), many.get(Q, 16, 16))


def test_weights_outlive_the_files_handles_and_take_the_target_dtype(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, CONFIG)
    with Weights(tmp_path, torch.float32) as weights:
        tensor = weights.get(Q, 16, 16)
    assert tensor.dtype is torch.float32
    assert torch.equal(tensor, load_file(tmp_path / "model.safetensors")[Q].float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_a_loaded_model_does_not_keep_its_files_mapped(
    tmp_path: Path, stored: str, dtype: torch.dtype, tied: bool
) -> None:
    """Weights are held once: in the order that products read them, and not as they lie in the file."""
    write_checkpoint(tmp_path, CONFIG | {"dtype": stored, "tie_word_embeddings": tied})
    model = load(tmp_path, read_config(tmp_path), dtype)
    assert model.dtype is dtype
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


def test_the_digest_follows_config_names_and_contents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "other-config", "sharded"):
        write_checkpoint(tmp_path / name, CONFIG, shards=2 if name == "sharded" else 1)
    write_checkpoint(tmp_path / "other-weights", CONFIG, seed=1)
    change_config(rope_theta=20000.0)(tmp_path / "other-config")
    for piece in (1 << 26, 1000):
        monkeypatch.setattr(digest, "PIECE_BYTES", piece)
        found = {path.name: weights_digest(path) for path in tmp_path.iterdir()}
        assert found["a"] == found["b"]
        assert len(set(found.values())) == 4


@pytest.mark.parametrize("at", [0, 2999, 3000, -1], ids=["first", "before-a-border", "after-a-border", "last"])
def test_the_digest_sees_every_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    monkeypatch.setattr(digest, "PIECE_BYTES", 3000)
    monkeypatch.setattr(digest, "READ_BYTES", 700)
    write_checkpoint(tmp_path, CONFIG)
    before = weights_digest(tmp_path)
    file = tmp_path / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)
    assert weights_digest(tmp_path) != before


@pytest.mark.parametrize("sizes", [(2, 1, 1), (1, 2, 1), (1, 1, 2)], ids=["tensor", "pipeline", "expert"])
def test_more_than_one_rank_is_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="one rank is supported"):
        Parallel(*sizes)
