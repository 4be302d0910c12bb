"""Shapes from config.json: what families leave unsaid, what is null, how large they are."""

from __future__ import annotations

from typing import Any

import pytest

from headrace_wire.memory import Load, footprints
from headrace_wire.shape import ARCHITECTURES, ShapeError, read_shape, read_window

QWEN2_7B: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_position_embeddings": 32768,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "sliding_window": 131072,
    "use_sliding_window": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 152064,
}
MISTRAL_7B: dict[str, Any] = {
    "architectures": ["MistralForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "head_dim": None,
    "sliding_window": 4096,
    "torch_dtype": "bfloat16",
    "vocab_size": 32000,
}


@pytest.mark.parametrize(
    ("config", "parameters"),
    [(QWEN2_7B, 7_615_616_512), (MISTRAL_7B, 7_241_732_096)],
    ids=["qwen2.5-7b", "mistral-7b"],
)
def test_published_sizes(config: dict[str, Any], parameters: int) -> None:
    shape = read_shape(config)
    assert shape.parameters == parameters
    assert footprints(shape, Load())[0].weights == 2 * parameters


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        pytest.param(MISTRAL_7B, 32768, id="beyond-the-window"),
        pytest.param(MISTRAL_7B | {"sliding_window": None}, 32768, id="no-window"),
        pytest.param(MISTRAL_7B | {"sliding_window": 1 << 20}, 32768, id="wide-window"),
        pytest.param(QWEN2_7B, 32768, id="a-window-that-is-off"),
    ],
)
def test_context(config: dict[str, Any], positions: int) -> None:
    assert read_shape(config).max_positions == positions


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_biases(name: str) -> None:
    """Qwen2 has them, Mistral has none, the others say."""
    asked = read_shape(MISTRAL_7B | {"architectures": [name], "attention_bias": True})
    silent = read_shape(MISTRAL_7B | {"architectures": [name]})
    expected = {"Qwen2ForCausalLM": (True, True, False), "MistralForCausalLM": (False, False, False)}
    assert (asked.attention_bias, silent.attention_bias, asked.output_bias) == expected.get(name, (True, False, True))


def test_null_is_absent() -> None:
    shape = read_shape(MISTRAL_7B | {"num_key_value_heads": None})
    assert (shape.head_dim, shape.kv_heads) == (128, 32)
    with pytest.raises(ShapeError, match="hidden_size: is missing"):
        read_shape(MISTRAL_7B | {"hidden_size": None})


@pytest.mark.parametrize(
    ("config", "window"),
    [
        pytest.param(MISTRAL_7B, 4096, id="mistral"),
        pytest.param(MISTRAL_7B | {"sliding_window": None}, None, id="mistral-without"),
        pytest.param(QWEN2_7B, None, id="off"),
    ],
)
def test_window(config: dict[str, Any], window: int | None) -> None:
    assert read_window(config, config["architectures"][0]) == window


@pytest.mark.parametrize("window", [0, -1, "x", True, 1.5])
def test_a_window_that_is_none(window: Any) -> None:
    with pytest.raises(ShapeError, match="sliding_window"):
        read_shape(MISTRAL_7B | {"sliding_window": window})
