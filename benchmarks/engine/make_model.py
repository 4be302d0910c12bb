"""Makes a Qwen3-shaped model of 107M random weights, with a real tokenizer and chat template, and its GGUF copy.

    python benchmarks/engine/make_model.py FOLDER

FOLDER gets config.json, model.safetensors, tokenizer.json, tokenizer_config.json and model.gguf (bf16). The tokenizer
is byte-level BPE, trained on the ASCII text of Python's own standard library, so nothing is downloaded. Rows of the
(tied) embedding whose tokens end an answer or are not text are near zero: no greedy answer holds them, so every token
of every server is text and no answer ends early, whether a server honours `ignore_eos` or not.
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

RECIPE = 1  # another number for another model
VOCAB = 32_000
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
EOS = 2
QUIET = 0.01  # of the size of other rows: their logits are near zero, where the largest of all is near four
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# How Qwen's tokenizers cut text into words: llama.cpp knows it by the name `qwen2`.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": VOCAB,
    "hidden_size": 768,
    "intermediate_size": 2304,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "attention_bias": False,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": EOS,
    "pad_token_id": 0,
    "dtype": "bfloat16",
    "torch_dtype": "bfloat16",
}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    make(parser.parse_args().folder)


def make(folder: Path) -> None:
    """Make the model in `folder`, unless it is whole already: the GGUF file comes last."""
    if (folder / "model.gguf").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(standard_library(), VOCAB)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SPECIAL[EOS],
        "pad_token": SPECIAL[0],
        "model_max_length": CONFIG["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
    generation = {"bos_token_id": 0, "eos_token_id": EOS, "pad_token_id": 0, "do_sample": False}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=1))
    write_weights(folder, quiet(tokenizer.get_vocab()))
    partial = folder / "model.gguf.partial"
    write_gguf(folder, partial)
    partial.rename(folder / "model.gguf")
    sys.stderr.write(f"made {folder}: {sum(f.stat().st_size for f in folder.iterdir()) >> 20} MiB\n")


def train_tokenizer(texts: Iterator[str], vocab: int) -> Any:
    """Byte-level BPE with `vocab` tokens; ids of SPECIAL are 0, 1, 2. Raises ValueError if the texts give fewer."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != vocab:
        raise ValueError(f"the texts gave {tokenizer.get_vocab_size()} tokens, not {vocab}")
    return tokenizer


def standard_library() -> Iterator[str]:
    """The ASCII text of Python's own sources."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted((*root.glob("*.py"), *root.glob("*/*.py"))):
        if "site-packages" not in path.parts:
            yield path.read_bytes().decode("ascii", "ignore")


def quiet(vocab: Mapping[str, int]) -> list[int]:
    """Ids that are not text of their own: special tokens, control bytes and bytes above ASCII."""
    return sorted(index for token, index in vocab.items() if token in SPECIAL or not all(map(_plain, token)))


def _plain(char: str) -> bool:
    """Does byte-level BPE write a printable ASCII byte, a space or a newline as this character?"""
    return "!" <= char <= "~" or char in "ĠĊ"


def write_weights(folder: Path, silent: Sequence[int]) -> None:
    """config.json and model.safetensors; the rows `silent` of the embedding are made small."""
    import torch
    from safetensors.torch import load_file, save_file

    from headrace_engine.models.random import write_checkpoint

    write_checkpoint(folder, CONFIG)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors["model.embed_tokens.weight"][torch.tensor(silent)] *= QUIET
    save_file(tensors, path, metadata={"format": "pt"})


# GGUF, version 3: header, keys with typed values, table of tensors, then their data at multiples of 32 bytes.
U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
TENSOR_F32, TENSOR_BF16, FILE_BF16 = 0, 30, 32
TOKEN_NORMAL, TOKEN_CONTROL = 1, 3
ALIGNMENT = 32
NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@dataclass(frozen=True)
class Stored:
    """A tensor as safetensors holds it."""

    name: str
    shape: tuple[int, ...]
    data: bytes  # bf16, little endian


def write_gguf(folder: Path, path: Path) -> None:
    """The model of `folder` as one file for llama.cpp; bf16 matrices, fp32 vectors."""
    tensors = [
        Stored(gguf_name(t.name), t.shape, widen(t.data) if len(t.shape) == 1 else t.data)
        for t in read_safetensors(folder / "model.safetensors")
    ]
    keys = gguf_keys(json.loads((folder / "tokenizer.json").read_text()))
    with path.open("wb") as out:
        out.write(struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(keys)))
        for key, kind, value in keys:
            out.write(_string(key) + struct.pack("<I", kind) + _value(kind, value))
        offset = 0
        for tensor in tensors:
            kind = TENSOR_F32 if len(tensor.shape) == 1 else TENSOR_BF16
            out.write(_string(tensor.name) + struct.pack("<I", len(tensor.shape)))
            out.write(struct.pack(f"<{len(tensor.shape)}Q", *reversed(tensor.shape)) + struct.pack("<IQ", kind, offset))
            offset += _padded(len(tensor.data))
        _pad(out)
        for tensor in tensors:
            out.write(tensor.data)
            _pad(out)


def read_safetensors(path: Path) -> Iterator[Stored]:
    """Every tensor of the file. Raises ValueError if one is not bf16."""
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    for name, entry in json.loads(content[8 : 8 + size]).items():
        if name == "__metadata__":
            continue
        if entry["dtype"] != "BF16":
            raise ValueError(f"{name} is {entry['dtype']}, not BF16")
        begin, end = entry["data_offsets"]
        yield Stored(name, tuple(entry["shape"]), content[8 + size + begin : 8 + size + end])


def gguf_name(name: str) -> str:
    """llama.cpp's name of a tensor. Raises KeyError for one that this architecture does not have."""
    if name in NAMES:
        return NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{NAMES[rest.removesuffix('.weight')]}.weight"


def widen(data: bytes) -> bytes:
    """bf16 as fp32: the same upper half, a lower half of zeros."""
    wide = bytearray(2 * len(data))
    wide[2::4], wide[3::4] = data[0::2], data[1::2]
    return bytes(wide)


def gguf_keys(tokenizer: Mapping[str, Any]) -> list[tuple[str, int, Any]]:
    """Keys of the header: shape, tokenizer, chat template."""
    vocab: dict[str, int] = tokenizer["model"]["vocab"]
    tokens = [token for token, _ in sorted(vocab.items(), key=lambda item: item[1])]
    kinds = [TOKEN_CONTROL if token in SPECIAL else TOKEN_NORMAL for token in tokens]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    return [
        ("general.architecture", STRING, "qwen3"),
        ("general.name", STRING, "random-107m"),
        ("general.file_type", U32, FILE_BF16),
        ("general.alignment", U32, ALIGNMENT),
        ("qwen3.context_length", U32, CONFIG["max_position_embeddings"]),
        ("qwen3.embedding_length", U32, CONFIG["hidden_size"]),
        ("qwen3.block_count", U32, CONFIG["num_hidden_layers"]),
        ("qwen3.feed_forward_length", U32, CONFIG["intermediate_size"]),
        ("qwen3.attention.head_count", U32, CONFIG["num_attention_heads"]),
        ("qwen3.attention.head_count_kv", U32, CONFIG["num_key_value_heads"]),
        ("qwen3.attention.key_length", U32, CONFIG["head_dim"]),
        ("qwen3.attention.value_length", U32, CONFIG["head_dim"]),
        ("qwen3.rope.freq_base", F32, CONFIG["rope_theta"]),
        ("qwen3.attention.layer_norm_rms_epsilon", F32, CONFIG["rms_norm_eps"]),
        ("qwen3.vocab_size", U32, VOCAB),
        ("tokenizer.ggml.model", STRING, "gpt2"),
        ("tokenizer.ggml.pre", STRING, "qwen2"),
        ("tokenizer.ggml.tokens", ARRAY, (STRING, tokens)),
        ("tokenizer.ggml.token_type", ARRAY, (I32, kinds)),
        ("tokenizer.ggml.merges", ARRAY, (STRING, merges)),
        ("tokenizer.ggml.bos_token_id", U32, 0),
        ("tokenizer.ggml.eos_token_id", U32, EOS),
        ("tokenizer.ggml.padding_token_id", U32, 0),
        ("tokenizer.ggml.add_bos_token", BOOL, False),
        ("tokenizer.chat_template", STRING, TEMPLATE),
    ]


def _value(kind: int, value: Any) -> bytes:
    if kind == STRING:
        return _string(value)
    if kind == ARRAY:
        inner, items = value
        return struct.pack("<IQ", inner, len(items)) + b"".join(_value(inner, item) for item in items)
    return struct.pack({U32: "<I", I32: "<i", F32: "<f", BOOL: "<?"}[kind], value)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _pad(out: BinaryIO) -> None:
    out.write(bytes(_padded(out.tell()) - out.tell()))


if __name__ == "__main__":
    main()
