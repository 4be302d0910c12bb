"""A model folder's config.json, read and checked: what the layers compute with."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace_engine.core.failure import StartError
from headrace_wire.shape import ARCHITECTURES, ModelShape, ShapeError, read_flag, read_shape, read_window

CONFIG = "config.json"
MOST = 1e30  # that a constant of the rotation may be


@dataclass(frozen=True, kw_only=True)
class Rope:
    """Rotary embedding: `inverse` frequencies are those of `frequencies()`."""

    theta: float
    kind: str = "default"  # default | linear | llama3
    factor: float = 1.0
    low_factor: float = 1.0
    high_factor: float = 4.0
    original: int = 8192  # context length of the pretraining, tokens

    def frequencies(self, dim: int) -> list[float]:
        """Radians per position of each of the dim / 2 pairs."""
        plain = [self.theta ** (-2.0 * i / dim) for i in range(dim // 2)]
        if self.kind == "linear":
            return [f / self.factor for f in plain]
        if self.kind == "llama3":
            return [self._llama3(f) for f in plain]
        return plain

    def _llama3(self, frequency: float) -> float:
        """Long waves are stretched by `factor`, short ones stay, those between are blended."""
        wave = 2 * math.pi / frequency  # tokens
        if wave < self.original / self.high_factor:
            return frequency
        if wave > self.original / self.low_factor:
            return frequency / self.factor
        smooth = (self.original / wave - self.low_factor) / (self.high_factor - self.low_factor)
        return (1 - smooth) * frequency / self.factor + smooth * frequency


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """A decoder-only transformer: sizes, and the constants of its norms and positions."""

    shape: ModelShape
    norm_eps: float
    rope: Rope
    mlp_bias: bool = False
    window: int | None = None  # tokens that one sees, itself included; None: all


def read_config(folder: Path) -> DecoderConfig:
    """Read config.json. Raises StartError naming the file and the field."""
    try:
        config = json.loads((folder / CONFIG).read_bytes())
        json.dumps(config, ensure_ascii=False).encode()  # a lone surrogate is in no name
    except FileNotFoundError as error:
        raise StartError("ModelInvalid", f"{CONFIG} is missing in {folder.name}", CONFIG) from error
    except (OSError, ValueError, RecursionError) as error:
        raise StartError("ModelInvalid", f"{CONFIG} cannot be read: {error}", CONFIG) from error
    if not isinstance(config, dict):
        raise StartError("ModelInvalid", f"{CONFIG} is not a JSON object", CONFIG)
    try:
        shape = read_shape(config)
        mlp_bias = read_flag(config, "mlp_bias")
    except ShapeError as error:
        unsupported = error.field == "architectures" and config.get("architectures") not in (None, [])
        reason = "ArchitectureUnsupported" if unsupported else "ModelInvalid"
        raise StartError(reason, str(error), CONFIG) from error
    _check(config)
    eps = config.get("rms_norm_eps", 1e-6)
    if not isinstance(eps, int | float) or not 0 < eps < 1:
        raise StartError("ModelInvalid", f"{CONFIG}: rms_norm_eps: must be between 0 and 1, got {eps!r}", CONFIG)
    return DecoderConfig(
        shape=shape,
        norm_eps=float(eps),
        rope=_rope(config),
        mlp_bias=mlp_bias,
        window=read_window(config, shape.architecture),
    )


def _check(config: Mapping[str, Any]) -> None:
    """Refuse what would be computed wrongly."""
    for field, supported in (("hidden_act", "silu"), ("use_sliding_window", False), ("quantization_config", None)):
        value = config.get(field, supported)
        if value != supported:
            message = f"{CONFIG}: {field}: {value!r} is not supported with {', '.join(ARCHITECTURES)}"
            raise StartError("ArchitectureUnsupported", message, CONFIG)


def _rope(config: Mapping[str, Any]) -> Rope:
    """From `rope_parameters`, or from the older `rope_theta` with `rope_scaling`."""
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(scaling, dict):
        raise StartError("ModelInvalid", f"{CONFIG}: rope_scaling: must be an object", CONFIG)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind not in ("default", "linear", "llama3"):
        raise StartError("ArchitectureUnsupported", f"{CONFIG}: rope_scaling: type {kind!r} is not supported", CONFIG)
    names = {
        "theta": "rope_theta",
        "factor": "factor",
        "low_factor": "low_freq_factor",
        "high_factor": "high_freq_factor",
        "original": "original_max_position_embeddings",
    }
    values: dict[str, Any] = {"theta": config.get("rope_theta", 10000.0)}
    values |= {ours: scaling[theirs] for ours, theirs in names.items() if theirs in scaling}
    for ours, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MOST:
            raise StartError(
                "ModelInvalid", f"{CONFIG}: {names[ours]}: must be positive and finite, got {value!r:.50}", CONFIG
            )
    return Rope(kind=kind, **values)
