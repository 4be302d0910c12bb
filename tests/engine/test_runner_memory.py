"""Pool sizing: the arithmetic, its refusals, and the limits it starts from."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace_engine.core.failure import StartError
from headrace_engine.core.threads import allowed_cpus, set_policy
from headrace_engine.runner.memory import Demand, Supply, memory_limit, pool_pages, used_of_limit

MIB = 1 << 20
GIB = 1 << 30


def supply(fixed: int | None = None, limit: int = GIB, used: int = 0, working: int = 0) -> Supply:
    return Supply(fixed=fixed, percent=90, limit=limit, used=used, working=working)


@pytest.mark.parametrize(
    ("given", "sequences", "pages"),
    [
        pytest.param(supply(fixed=101 * MIB), 16, 100, id="fixed-less-the-dummy"),
        pytest.param(supply(fixed=GIB), 3, 96, id="never-more-than-all-sequences-need"),
        pytest.param(supply(limit=1000 * MIB, used=700 * MIB, working=99 * MIB), 16, 100, id="percent-of-the-limit"),
        pytest.param(supply(fixed=33 * MIB), 16, 32, id="exactly-one-sequence"),
    ],
)
def test_pages(given: Supply, sequences: int, pages: int) -> None:
    assert pool_pages(Demand(page_bytes=MIB, max_tokens=2048, max_sequences=sequences), given) == pages


@pytest.mark.parametrize(
    ("given", "words"),
    [
        pytest.param(supply(fixed=33 * MIB - 1), "a KV cache of 33.0 MiB was asked for: 31 pages", id="fixed"),
        pytest.param(
            supply(fixed=10 << 10),
            "a KV cache of 10.0 KiB was asked for: 0 pages. "
            "Lower the context length (--max-model-len), or raise the KV cache size (--kv-cache-bytes)",
            id="fixed-below-a-MiB",
        ),
        pytest.param(
            supply(limit=512 * MIB, used=440 * MIB, working=10 * MIB),
            "90 % of 512.0 MiB less 440.0 MiB in use after loading and 10.0 MiB for a step leave 10.8 MiB: 9 pages",
            id="percent",
        ),
        pytest.param(
            supply(limit=512 * MIB, used=600 * MIB),
            "leave 0.0 KiB: 0 pages. Lower the context length (--max-model-len), or give more memory",
            id="nothing-left",
        ),
    ],
)
def test_refuses_with_the_arithmetic(given: Supply, words: str) -> None:
    with pytest.raises(StartError) as refused:
        pool_pages(Demand(page_bytes=MIB, max_tokens=2048, max_sequences=4), given)
    assert refused.value.reason == "OutOfMemory"
    assert "one sequence of 2048 tokens needs 32 pages of 1.0 MiB and a dummy page, 33.0 MiB" in refused.value.message
    assert words in refused.value.message


def test_a_fixed_size_that_is_not_there_is_refused_unless_sequences_cannot_use_it() -> None:
    demand = Demand(page_bytes=MIB, max_tokens=2048, max_sequences=16)
    with pytest.raises(StartError) as refused:
        pool_pages(demand, supply(fixed=8 * GIB, limit=900 * MIB, used=400 * MIB))
    assert refused.value.reason == "OutOfMemory"
    assert refused.value.message == (
        "a KV cache of 8.00 GiB was asked for, of which 16 sequences of 2048 tokens can use 513.0 MiB; "
        "900.0 MiB less 400.0 MiB in use leave 500.0 MiB. "
        "Lower the KV cache size (--kv-cache-bytes), or give more memory"
    )
    assert pool_pages(demand, supply(fixed=8 * GIB, limit=913 * MIB, used=400 * MIB)) == 512


def machine(root: Path, files: dict[str, str]) -> Path:
    """A file system with 8 GiB of memory, 6 of them available, and these files."""
    kib = 1024 * 1024
    standard = {"proc/meminfo": f"MemTotal:  {8 * kib} kB\nMemAvailable: {6 * kib} kB\n"}
    for name, text in (standard | files).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


V2 = {"proc/self/cgroup": "0::/\n"}
V1 = {"proc/self/cgroup": "4:cpu,cpuacct:/pod/x\n3:memory:/pod/x\n"}


@pytest.mark.parametrize(
    ("files", "limit", "used"),
    [
        pytest.param({}, 8 * GIB, 2 * GIB, id="no-control-group"),
        pytest.param(V2 | {"sys/fs/cgroup/memory.max": "max\n"}, 8 * GIB, 2 * GIB, id="v2-unlimited"),
        pytest.param(
            V2
            | {
                "sys/fs/cgroup/memory.max": f"{GIB}\n",
                "sys/fs/cgroup/memory.current": f"{400 * MIB}\n",
                "sys/fs/cgroup/memory.stat": f"anon 5\ninactive_file {100 * MIB}\n",
            },
            GIB,
            300 * MIB,
            id="v2",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/memory.max": "max",
                "sys/fs/cgroup/a/memory.max": f"{2 * GIB}",
                "sys/fs/cgroup/a/b/memory.current": f"{MIB}",
                "sys/fs/cgroup/a/b/memory.stat": "anon 5\n",
            },
            2 * GIB,
            MIB,
            id="v2-limit-of-a-parent",
        ),
        pytest.param(
            V1
            | {
                "sys/fs/cgroup/memory/pod/x/memory.limit_in_bytes": f"{GIB}\n",
                "sys/fs/cgroup/memory/pod/x/memory.usage_in_bytes": f"{500 * MIB}\n",
                "sys/fs/cgroup/memory/pod/x/memory.stat": f"total_inactive_file {200 * MIB}\n",
            },
            GIB,
            300 * MIB,
            id="v1",
        ),
        pytest.param(
            V1 | {"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"},
            8 * GIB,
            2 * GIB,
            id="v1-unlimited",
        ),
    ],
)
def test_the_limit_is_the_smallest_there_is(tmp_path: Path, files: dict[str, str], limit: int, used: int) -> None:
    root = machine(tmp_path, files)
    assert memory_limit(root) == limit
    assert used_of_limit(root) == used


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        pytest.param({}, 1000, id="no-quota"),
        pytest.param({"sys/fs/cgroup/cpu.max": "max 100000\n"}, 1000, id="v2-unlimited"),
        pytest.param({"sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1, id="v2-half-a-cpu"),
        pytest.param(
            {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"},
            1000,
            id="v1-unlimited",
        ),
        pytest.param(
            {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "150000\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"},
            2,
            id="v1-one-and-a-half",
        ),
    ],
)
def test_cpus_follow_affinity_and_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], cpus: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(1000)))
    assert allowed_cpus(machine(tmp_path, files)) == cpus


@pytest.mark.parametrize(
    ("environment", "threads", "after"),
    [
        pytest.param({}, 2, {"GOMP_SPINCOUNT": "20000"}, id="all-cpus"),
        pytest.param({}, 1, {"OMP_WAIT_POLICY": "PASSIVE"}, id="one-thread"),
        pytest.param({"OMP_WAIT_POLICY": "ACTIVE"}, 2, {"OMP_WAIT_POLICY": "ACTIVE"}, id="as-the-user-says"),
    ],
)
def test_thread_policy(environment: dict[str, str], threads: int, after: dict[str, str]) -> None:
    set_policy(environment, threads, cpus=2)
    assert environment == after
