"""Is a model folder whole? Configuration, tokenizer and headers of the weights are checked before anything large is
read; then the digest reads all of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace_engine.core.failure import StartError
from headrace_engine.fetch.headers import Tensor, read_tensors, weights_bytes
from headrace_engine.models.config import CONFIG, DecoderConfig, read_config
from headrace_engine.models.digest import weights_digest
from headrace_wire.chat import ChatTokenizer, TokenizerInvalid
from headrace_wire.shape import ModelShape

TOKENIZER = "tokenizer.json"
FLOATS = ("BF16", "F16", "F32", "F64", "F8_E4M3", "F8_E5M2")
"""Types that a weight may be stored in."""


@dataclass(frozen=True)
class Valid:
    """A model folder that can be served."""

    shape: ModelShape
    digest: str
    weights_bytes: int
    tokenizer: ChatTokenizer


def validate(folder: Path) -> Valid:
    """Raises StartError (ModelIncomplete, ModelInvalid, ArchitectureUnsupported, SourceNotFound) naming the file."""
    if not folder.is_dir():
        raise StartError("SourceNotFound", f"{folder} is not a folder")
    for name in (CONFIG, TOKENIZER):
        if not (folder / name).is_file():
            raise StartError("ModelIncomplete", f"{name} is missing in {folder}", name)
    config = read_config(folder)
    shape = config.shape
    try:
        tokenizer = ChatTokenizer.from_folder(folder)
    except TokenizerInvalid as error:
        raise StartError("ModelInvalid", str(error), error.file) from error
    if tokenizer.size > shape.vocab:
        message = f"{TOKENIZER} has {tokenizer.size} tokens, the model's vocab_size is {shape.vocab}"
        raise StartError("ModelInvalid", message, TOKENIZER)
    _check_tensors(read_tensors(folder), config)
    return Valid(shape, weights_digest(folder), weights_bytes(folder), tokenizer)


def _check_tensors(tensors: dict[str, Tensor], config: DecoderConfig) -> None:
    for name, wanted in expected(config.shape, config.mlp_bias):
        tensor = tensors.get(name)
        if tensor is None:
            file = next(iter(tensors.values())).file if tensors else "model.safetensors"
            raise StartError("ModelIncomplete", f"tensor {name} is missing", file)
        if tensor.dtype not in FLOATS:
            message = f"{tensor.file}: tensor {name} is of {tensor.dtype}, weights are of {', '.join(FLOATS)}"
            raise StartError("ModelInvalid", message, tensor.file)
        if tensor.shape != wanted:
            message = f"{tensor.file}: tensor {name} has shape {list(tensor.shape)}, expected {list(wanted)}"
            raise StartError("ModelInvalid", message, tensor.file)


def expected(shape: ModelShape, mlp_bias: bool = False) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the tensors that the architecture needs."""
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield "model.embed_tokens.weight", (shape.vocab, shape.hidden)
    for index in range(shape.layers):
        layer = f"model.layers.{index}."
        yield layer + "input_layernorm.weight", (shape.hidden,)
        for name, rows in (("q", q), ("k", kv), ("v", kv)):
            yield f"{layer}self_attn.{name}_proj.weight", (rows, shape.hidden)
            if shape.attention_bias:
                yield f"{layer}self_attn.{name}_proj.bias", (rows,)
        yield layer + "self_attn.o_proj.weight", (shape.hidden, q)
        if shape.output_bias:
            yield layer + "self_attn.o_proj.bias", (shape.hidden,)
        if shape.qk_norm:
            yield layer + "self_attn.q_norm.weight", (shape.head_dim,)
            yield layer + "self_attn.k_norm.weight", (shape.head_dim,)
        yield layer + "post_attention_layernorm.weight", (shape.hidden,)
        for name, rows, columns in (
            ("gate", shape.intermediate, shape.hidden),
            ("up", shape.intermediate, shape.hidden),
            ("down", shape.hidden, shape.intermediate),
        ):
            yield f"{layer}mlp.{name}_proj.weight", (rows, columns)
            if mlp_bias:
                yield f"{layer}mlp.{name}_proj.bias", (rows,)
    yield "model.norm.weight", (shape.hidden,)
    if not shape.tied:
        yield "lm_head.weight", (shape.vocab, shape.hidden)
