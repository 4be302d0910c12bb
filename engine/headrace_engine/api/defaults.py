"""A model's own sampling defaults, from its generation_config.json: what a request gets where it says nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from headrace_engine.api.schema import MAX_REPETITION
from headrace_engine.core.failure import StartError

FILE = "generation_config.json"


@dataclass(frozen=True)
class Defaults:
    """Sampling where a body leaves a field out."""

    greedy: bool = False  # unless a body names a temperature or a cut
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


NO_DEFAULTS = Defaults()
_RANGES = {  # inclusive; what a request may ask for
    "temperature": (0.0, 2.0),
    "top_p": (1e-9, 1.0),
    "top_k": (0.0, 2.0**31),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (1e-9, MAX_REPETITION),
}


def read_defaults(folder: Path) -> Defaults:
    """From the folder; fields that are absent or null ask for nothing. Only an explicit `do_sample: false` is greedy.

    Raises StartError naming the field where a value is none that a request could ask for.
    """
    path = folder / FILE
    if not path.is_file():
        return NO_DEFAULTS
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise StartError("ModelInvalid", f"{FILE} cannot be read: {error}", FILE) from error
    if not isinstance(config, dict):
        raise StartError("ModelInvalid", f"{FILE} is not a JSON object", FILE)
    found: dict[str, float] = {}
    for field, (low, high) in _RANGES.items():
        value = config.get(field)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise StartError("ModelInvalid", f"{FILE}: {field}: must be {low:g} to {high:g}, got {value!r}", FILE)
        found[field] = float(value)
    top_k = int(found.pop("top_k", 0))
    return Defaults(greedy=_greedy(config.get("do_sample")), top_k=top_k, **found)


def _greedy(do_sample: object) -> bool:
    if do_sample is not None and not isinstance(do_sample, bool):
        raise StartError("ModelInvalid", f"{FILE}: do_sample: must be true or false, got {do_sample!r}", FILE)
    return do_sample is False
