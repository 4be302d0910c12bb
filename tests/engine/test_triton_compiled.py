"""The Triton decode kernel compiled for sm_90, which needs no GPU: code comes out, and it fits the machine."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from headrace_engine.attention.triton_decode import MIN_ROWS, SPLIT_PAGES, combine_kernel, decode_kernel

SHARED_LIMIT = 227 * 1024  # bytes of shared memory that a program may use on sm_90
TARGET = GPUTarget("cuda", 90, 32)
POINTERS = {"fp16": "*fp16", "bf16": "*bf16"}


def compile_decode(dtype: str, dim: int, group: int) -> Any:
    signature = {
        "q_ptr": POINTERS[dtype],
        "k_ptr": POINTERS[dtype],
        "v_ptr": POINTERS[dtype],
        "table_ptr": "*i32",
        "context_ptr": "*i32",
        "partial_ptr": "*fp32",
        "lse_ptr": "*fp32",
        "scale": "fp32",
        "table_stride": "i32",
        "kv_heads": "i32",
        "splits": "i32",
    }
    constants = {
        "GROUP": group,
        "TILE": max(MIN_ROWS, triton.next_power_of_2(group)),
        "DIM": dim,
        "PAGE": 64,
        "SPLIT": SPLIT_PAGES,
    }
    signature |= dict.fromkeys(constants, "constexpr")
    # Torch's allocations are aligned to 16 bytes, which lets loads be asynchronous copies.
    aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(signature.values()) if kind.startswith("*")}
    source = ASTSource(fn=decode_kernel, signature=signature, constexprs=constants, attrs=aligned)
    return triton.compile(source, target=TARGET, options={"num_warps": 4, "num_stages": 3})


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize(("dim", "group"), [(64, 2), (128, 4), (128, 8)], ids=lambda n: str(n))
def test_decode_compiles_and_fits(dtype: str, dim: int, group: int, tmp_path: Path) -> None:
    kernel = compile_decode(dtype, dim, group)
    ptx = kernel.asm["ptx"]
    assert ".target sm_90" in ptx
    assert "mma.sync" in ptx, "the products run on tensor cores"
    assert "cp.async" in ptx, "keys and values are loaded ahead"
    tiles = 2 * 64 * dim * 2  # bytes of one page's keys and values
    assert 2 * tiles <= kernel.metadata.shared <= SHARED_LIMIT, "more than one buffer, within the limit"
    stack, spills = resources(kernel.asm["cubin"], tmp_path)
    assert (stack, spills) == (0, 0)


def resources(cubin: bytes, folder: Path) -> tuple[int, int]:
    """Bytes of stack and of spilled registers, as the cubin's own notes say."""
    assert cubin[:4] == b"\x7fELF"
    tool = shutil.which("cuobjdump") or str(Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump")
    if not Path(tool).exists():
        pytest.skip("cuobjdump is not there: code and shared memory are checked, spills are not")
    file = folder / "kernel.cubin"
    file.write_bytes(cubin)
    usage = subprocess.run([tool, "-res-usage", str(file)], capture_output=True, text=True, check=True, timeout=60)
    found = re.search(r"STACK:(\d+).*LOCAL:(\d+)", usage.stdout + usage.stderr)
    assert found is not None
    return int(found[1]), int(found[2])


def test_combine_compiles() -> None:
    signature = {"partial_ptr": "*fp32", "lse_ptr": "*fp32", "out_ptr": "*bf16", "splits": "i32"}
    constants = {"WIDTH": 16, "DIM": 128}
    source = ASTSource(
        fn=combine_kernel, signature=signature | dict.fromkeys(constants, "constexpr"), constexprs=constants
    )
    kernel = triton.compile(source, target=TARGET)
    assert ".target sm_90" in kernel.asm["ptx"]
    assert kernel.asm["cubin"][:4] == b"\x7fELF"
