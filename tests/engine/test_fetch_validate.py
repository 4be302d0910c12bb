"""A model folder is whole, or the file at fault is named."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from headrace_engine.core.failure import StartError
from headrace_engine.fetch.fetch import DEMO
from headrace_engine.fetch.headers import SINGLE
from headrace_engine.fetch.validate import expected, validate
from headrace_engine.models.digest import INDEX, weights_digest
from headrace_wire.shape import ARCHITECTURES, read_shape

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(DEMO, tmp_path / "model")


def change_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def shard(folder: Path) -> None:
    """The same weights in two files with an index. Tensors are taken as raw 16-bit words."""
    header_size = struct.unpack("<Q", (folder / SINGLE).read_bytes()[:8])[0]
    data = (folder / SINGLE).read_bytes()
    header = json.loads(data[8 : 8 + header_size])
    header.pop("__metadata__", None)
    names = sorted(header)
    where: dict[str, str] = {}
    for file, part in zip(SHARDS, (names[: len(names) // 2], names[len(names) // 2 :]), strict=True):
        entries, body = {}, b""
        for name in part:
            begin, end = header[name]["data_offsets"]
            piece = data[8 + header_size + begin : 8 + header_size + end]
            entries[name] = {**header[name], "data_offsets": [len(body), len(body) + len(piece)]}
            body += piece
            where[name] = file
        text = json.dumps(entries).encode()
        (folder / file).write_bytes(struct.pack("<Q", len(text)) + text + body)
    (folder / SINGLE).unlink()
    (folder / INDEX).write_text(json.dumps({"weight_map": where}))


def drop_tensor(folder: Path, name: str) -> None:
    tensors = _words(folder)
    del tensors[name]
    save_file(tensors, folder / SINGLE)


def _words(folder: Path) -> dict[str, Any]:
    """A float32 stand-in for each tensor: numpy has no bfloat16."""
    import numpy as np

    shape = read_shape(json.loads((folder / "config.json").read_text()))
    return {name: np.zeros(size, dtype=np.float32) for name, size in expected(shape)}


def cut(folder: Path, file: str, size: int) -> None:
    path = folder / file
    path.write_bytes(path.read_bytes()[:size])


def lose_second_shard(folder: Path) -> None:
    shard(folder)
    (folder / SHARDS[1]).unlink()


def cut_second_shard(folder: Path) -> None:
    shard(folder)
    cut(folder, SHARDS[1], (folder / SHARDS[1]).stat().st_size - 1)


def name_another_shard(folder: Path) -> None:
    shard(folder)
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"]["model.norm.weight"] = (
        SHARDS[0] if index["weight_map"]["model.norm.weight"] == SHARDS[1] else SHARDS[1]
    )
    (folder / INDEX).write_text(json.dumps(index))


def index_leads_out(folder: Path) -> None:
    shard(folder)
    (folder / INDEX).write_text(json.dumps({"weight_map": {"model.norm.weight": "../secret"}}))


def odd_header(folder: Path) -> None:
    text = b'{"a": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 4]}}'
    (folder / SINGLE).write_bytes(struct.pack("<Q", len(text)) + text + b"\0" * 4)


def integers(folder: Path) -> None:
    import numpy as np

    save_file(_words(folder) | {"model.norm.weight": np.zeros(256, dtype=np.int32)}, folder / SINGLE)


def template_is(folder: Path, template: Any) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": template}))
    (folder / "chat_template.jinja").unlink(missing_ok=True)


def huge_header(folder: Path) -> None:
    (folder / SINGLE).write_bytes(struct.pack("<Q", 1 << 60) + b"{}")


BROKEN: dict[str, tuple[Callable[[Path], object], str, str, str]] = {
    "no-config": (lambda f: (f / "config.json").unlink(), "ModelIncomplete", "config.json", "missing"),
    "config-not-json": (lambda f: (f / "config.json").write_text("{"), "ModelInvalid", "config.json", "cannot be read"),
    "config-nested": (lambda f: (f / "config.json").write_text("[" * 99999), "ModelInvalid", "config.json", ""),
    "architecture": (
        lambda f: change_config(f, architectures=["MambaForCausalLM"]),
        "ArchitectureUnsupported",
        "config.json",
        "MambaForCausalLM",
    ),
    "negative-layers": (
        lambda f: change_config(f, num_hidden_layers=-1),
        "ModelInvalid",
        "config.json",
        "num_hidden_layers",
    ),
    "tied-of-another-type": (
        lambda f: change_config(f, tie_word_embeddings="no"),
        "ModelInvalid",
        "config.json",
        "tie_word_embeddings: must be true or false, got 'no'",
    ),
    "bias-of-another-type": (lambda f: change_config(f, mlp_bias=1), "ModelInvalid", "config.json", "mlp_bias"),
    "dtype-of-another-type": (lambda f: change_config(f, dtype=["x"]), "ModelInvalid", "config.json", "dtype"),
    "a-size-beyond-all": (
        lambda f: change_config(f, max_position_embeddings=10**400),
        "ModelInvalid",
        "config.json",
        "max_position_embeddings: must be a positive integer up to",
    ),
    "an-odd-head": (lambda f: change_config(f, head_dim=5), "ModelInvalid", "config.json", "head_dim: must be even"),
    "a-lone-surrogate": (
        lambda f: change_config(f, architectures=["\ud800"]),
        "ModelInvalid",
        "config.json",
        "surrogates not allowed",
    ),
    "a-template-of-an-odd-name": (
        lambda f: template_is(f, [{"name": ["default"], "template": "x"}, {"name": "default", "template": 7}]),
        "ModelInvalid",
        "tokenizer_config.json",
        "chat_template must be a text, got 7",
    ),
    "a-template-with-a-surrogate": (
        lambda f: template_is(f, "\ud800"),
        "ModelInvalid",
        "tokenizer_config.json",
        "surrogates not allowed",
    ),
    "a-shard-of-a-long-name": (
        lambda f: (f / INDEX).write_text(json.dumps({"weight_map": {"x": "ü" * 150}})),
        "ModelInvalid",
        INDEX,
        "weight_map",
    ),
    "theta-beyond-all": (lambda f: change_config(f, rope_theta=10**400), "ModelInvalid", "config.json", "rope_theta"),
    "theta-without-end": (lambda f: change_config(f, rope_theta=1e999), "ModelInvalid", "config.json", "rope_theta"),
    "template-of-another-type": (
        lambda f: template_is(f, 5),
        "ModelInvalid",
        "tokenizer_config.json",
        "chat_template must be a text, got 5",
    ),
    "weights-of-integers": (integers, "ModelInvalid", SINGLE, "model.norm.weight is of I32"),
    "no-tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "ModelIncomplete", "tokenizer.json", "missing"),
    "tokenizer-broken": (lambda f: (f / "tokenizer.json").write_text("{}"), "ModelInvalid", "tokenizer.json", ""),
    "template-broken": (
        lambda f: (f / "chat_template.jinja").write_text("{% for %}"),
        "ModelInvalid",
        "chat template",
        "parse",
    ),
    "vocabulary": (lambda f: change_config(f, vocab_size=100), "ModelInvalid", "tokenizer.json", "1536"),
    "no-weights": (lambda f: (f / SINGLE).unlink(), "ModelIncomplete", SINGLE, INDEX),
    "cut-short": (lambda f: cut(f, SINGLE, 100_000), "ModelIncomplete", SINGLE, "cut short"),
    "cut-in-the-header": (lambda f: cut(f, SINGLE, 20), "ModelInvalid", SINGLE, "header"),
    "empty": (lambda f: cut(f, SINGLE, 0), "ModelInvalid", SINGLE, "header"),
    "a-pointer": (lambda f: (f / SINGLE).write_text("version https://git-lfs"), "ModelInvalid", SINGLE, "header"),
    "odd-entry": (odd_header, "ModelInvalid", SINGLE, "8 bytes"),
    "huge-header": (huge_header, "ModelInvalid", SINGLE, "header"),
    "missing-tensor": (
        lambda f: drop_tensor(f, "model.layers.1.mlp.up_proj.weight"),
        "ModelIncomplete",
        SINGLE,
        "model.layers.1.mlp.up_proj.weight",
    ),
    "wrong-shape": (lambda f: change_config(f, intermediate_size=511), "ModelInvalid", SINGLE, "expected"),
    "missing-shard": (lose_second_shard, "ModelIncomplete", SHARDS[1], SHARDS[1]),
    "cut-shard": (cut_second_shard, "ModelIncomplete", SHARDS[1], "cut short"),
    "tensor-in-another-shard": (name_another_shard, "ModelIncomplete", "", "model.norm.weight"),
    "index-not-json": (lambda f: (f / INDEX).write_text("{"), "ModelInvalid", INDEX, "cannot be read"),
    "index-leads-out": (index_leads_out, "ModelInvalid", INDEX, "'model.norm.weight' has '../secret'"),
}


@pytest.mark.parametrize(("damage", "reason", "file", "words"), BROKEN.values(), ids=BROKEN)
def test_the_file_is_named(folder: Path, damage: Callable[[Path], object], reason: str, file: str, words: str) -> None:
    damage(folder)
    with pytest.raises(StartError) as caught:
        validate(folder)
    assert caught.value.reason == reason
    assert file in ("", caught.value.file)
    assert words in caught.value.message


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="not a folder"):
        validate(tmp_path / "nowhere")


def test_whole_folders(folder: Path) -> None:
    single = validate(folder)
    assert single.digest == weights_digest(folder)
    shard(folder)
    sharded = validate(folder)
    assert sharded.shape == single.shape
    assert sharded.digest == weights_digest(folder) != single.digest


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "biased"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_expected_tensors_are_those_of_transformers(tmp_path: Path, name: str, bias: bool, tied: bool) -> None:
    transformers = pytest.importorskip("transformers")
    sizes: dict[str, Any] = {
        "vocab_size": 64,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
    }
    kind = name.removesuffix("ForCausalLM")
    if kind in ("Llama", "Qwen3"):
        sizes["attention_bias"], sizes["head_dim"] = bias, 8
    config = getattr(transformers, f"{kind}Config")(**sizes, tie_word_embeddings=tied)
    getattr(transformers, name)(config).save_pretrained(tmp_path)
    shape = read_shape(json.loads((tmp_path / "config.json").read_text()))
    saved = {key: tuple(tensor.shape) for key, tensor in load_file(tmp_path / SINGLE).items()}
    needed = dict(expected(shape))
    assert needed == saved
