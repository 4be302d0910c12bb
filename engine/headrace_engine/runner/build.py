"""From settings to a runner that can serve: read, load, size the pool."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import torch

from headrace_engine.attention.cpu import CpuAttention
from headrace_engine.config import EngineConfig
from headrace_engine.core import threads
from headrace_engine.core.failure import StartError
from headrace_engine.core.plan import Runner
from headrace_engine.core.sequence import pages_for
from headrace_engine.models.config import DecoderConfig, read_config
from headrace_engine.models.digest import weight_files, weights_digest
from headrace_engine.models.registry import load
from headrace_engine.runner import huge, kv, memory
from headrace_engine.runner.runner import TorchRunner
from headrace_wire.protocol import ModelInfo
from headrace_wire.shape import ModelShape

log = logging.getLogger(__name__)

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True)
class Engine:
    """What the core serves with."""

    runner: Runner
    model: ModelInfo
    shape: ModelShape
    memory: dict[str, int]  # bytes, but for keys that end in `_pages`


def build(config: EngineConfig) -> Engine:
    """Load the model and allocate its pool. Raises StartError."""
    torch.set_num_threads(threads.count(config.threads))
    folder = Path(config.path)
    decoder = read_config(folder)
    shape = decoder.shape
    name, dtype = _dtype(config, decoder)
    max_tokens = config.context(shape.max_positions)
    demand = memory.Demand(
        page_bytes=kv.page_bytes(shape, dtype.itemsize), max_tokens=max_tokens, max_sequences=config.max_sequences
    )
    if config.kv_cache_bytes is not None:
        memory.pool_pages(demand, _supply(config, shape, dtype.itemsize))  # what cannot be need not be loaded
    model = load(folder, decoder, dtype)
    memory.give_back()  # the originals of packed weights
    dense = huge.collapse()
    attention = CpuAttention(dtype, decoder.window)
    pages, arithmetic = _pool(demand, _supply(config, shape, dtype.itemsize))
    arithmetic["weights_bytes"] = sum(path.stat().st_size for path in weight_files(folder))
    log.info("weights in place", extra={"threads": torch.get_num_threads(), "huge_bytes": dense})
    runner = TorchRunner(
        model, attention, kv.spec(shape, pages, dtype.itemsize, attention.layout), kv.allocate(shape, pages, attention)
    )
    info = ModelInfo(
        name=config.served_name,
        digest=weights_digest(folder),
        architecture=shape.architecture,
        max_tokens=max_tokens,
        max_sequences=config.max_sequences,
        max_batch_tokens=config.max_batch_tokens,
        dtype=name,
        kv_dtype=name,
    )
    return Engine(runner, info, shape, arithmetic)


def _dtype(config: EngineConfig, decoder: DecoderConfig) -> tuple[str, torch.dtype]:
    name = config.dtype
    if name == "auto":
        name = "float32" if decoder.shape.dtype == "float32" else "bfloat16"
    if name not in DTYPES:
        raise StartError("ModelInvalid", f"dtype {name!r} is not supported; supported: auto, {', '.join(DTYPES)}")
    return name, DTYPES[name]


def _supply(config: EngineConfig, shape: ModelShape, element: int) -> memory.Supply:
    return memory.Supply(
        fixed=config.kv_cache_bytes,
        percent=config.memory_percent,
        limit=memory.memory_limit(),
        used=memory.used_of_limit(),
        working=memory.working_bytes(
            shape.hidden, shape.intermediate, shape.vocab, config.max_batch_tokens, config.max_sequences, element
        ),
    )


def _pool(demand: memory.Demand, supply: memory.Supply) -> tuple[int, dict[str, int]]:
    """Pages, and the arithmetic that led to them."""
    memory.keep(supply.working)
    pages = memory.pool_pages(demand, supply)
    log.info("KV pool sized", extra={"pages": pages, "page_bytes": demand.page_bytes, "because": supply.arithmetic})
    return pages, {
        "limit_bytes": supply.limit,
        "used_bytes": supply.used,
        "working_bytes": supply.working,
        "available_bytes": supply.bytes,
        "page_bytes": demand.page_bytes,
        "pool_bytes": (pages + 1) * demand.page_bytes,
        "pool_pages": pages,
        "sequence_pages": pages_for(demand.max_tokens),
    }
