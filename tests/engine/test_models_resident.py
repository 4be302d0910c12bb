"""Weights are in memory once: a process grows by their size, and not by that of the files they came from as well.

Memory of a process that did much else before says little, so the check runs in one of its own: this file is both the
test and that process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SMALL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "dtype": "bfloat16",
}
LARGE = SMALL | {
    "vocab_size": 4096,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_loaded_model_takes_the_size_of_its_weights(tmp_path: Path, dtype: str) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, __file__, str(tmp_path), dtype]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    grown, weights = (int(word) for word in done.stdout.split())
    assert weights > 90 << 20
    assert 0.9 * weights < grown < 1.3 * weights


def main(folder: Path, dtype_name: str) -> None:
    """Print by how many bytes the process grew, and the bytes of the weights in their target dtype."""
    import torch

    from headrace_engine.models.config import read_config
    from headrace_engine.models.random import write_checkpoint
    from headrace_engine.models.registry import load
    from headrace_engine.runner.memory import give_back

    def resident() -> int:
        give_back()
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    dtype = getattr(torch, dtype_name)
    for name, config in (("small", SMALL), ("large", LARGE)):
        write_checkpoint(folder / name, config)
    load(folder / "small", read_config(folder / "small"), dtype)  # what torch sets up for itself
    before = resident()
    config = read_config(folder / "large")
    model = load(folder / "large", config, dtype)
    print(resident() - before, config.shape.parameters * model.dtype.itemsize)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
