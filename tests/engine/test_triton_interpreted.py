"""The Triton decode kernel under Triton's interpreter against the reference. The interpreter is chosen when triton is
first imported, so the checks run in a process of their own: this file is both the test and that process."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

CASES = {
    "one-token": (4, 2, 64, [1]),
    "page-borders": (4, 2, 64, [63, 64, 65, 128]),
    "uneven-with-splits": (8, 2, 32, [700, 3, 512, 1100]),
    "multi-head": (2, 2, 16, [90, 40]),
    "wide-group": (20, 1, 32, [130, 10]),
    "wide-head": (4, 1, 128, [200]),
}
DTYPES = ("float32", "float16")  # the interpreter computes bfloat16 products wrongly


@pytest.fixture(scope="module")
def results() -> dict[str, str]:
    """What the other process says of each case."""
    environment = os.environ | {
        "TRITON_INTERPRET": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_decode_equals_the_reference(results: dict[str, str], name: str, dtype: str) -> None:
    assert results[f"{name} {dtype}"] == "equal"


def check(name: str, dtype_name: str) -> str:
    """Random KV on shuffled pages; poison where nobody may look."""
    import torch

    from headrace_engine.attention.base import LayerKv
    from headrace_engine.attention.reference import attend
    from headrace_engine.attention.triton_decode import decode

    heads, kv_heads, dim, contexts = CASES[name]
    dtype = getattr(torch, dtype_name)
    torch.manual_seed(3)
    counts = [-(-context // 64) for context in contexts]
    pages = torch.randperm(sum(counts)) + 1
    k = torch.randn(sum(counts) + 1, kv_heads, 64, dim, dtype=dtype)
    v = torch.randn_like(k)
    k[0] = v[0] = 1000.0  # the dummy page
    table = torch.zeros(len(contexts), max(counts), dtype=torch.int32)
    q = torch.randn(len(contexts), heads, dim, dtype=dtype)
    want = torch.empty_like(q)
    at = 0
    for row, (context, count) in enumerate(zip(contexts, counts, strict=True)):
        own = pages[at : at + count]
        at += count
        table[row, :count] = own
        k[own[-1], :, context - (count - 1) * 64 :] = 500.0
        keys = k[own].transpose(1, 2).flatten(0, 1)[:context]
        values = v[own].transpose(1, 2).flatten(0, 1)[:context]
        want[row] = attend(q[row : row + 1], keys, values)[0]
    got = decode(q, LayerKv(k, v), table, torch.tensor(contexts, dtype=torch.int32), max(contexts))
    tolerance = 2e-5 if dtype is torch.float32 else 5e-3
    try:
        torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance)
    except AssertionError as difference:
        return str(difference)
    return "equal"


if __name__ == "__main__":
    json.dump({f"{name} {dtype}": check(name, dtype) for name in CASES for dtype in DTYPES}, sys.stdout)
