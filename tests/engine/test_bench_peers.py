"""The benchmark beside the peers: intervals, prompts, client, processes and report, without any real server."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from benchmarks.engine import make_model
from benchmarks.engine.peers import cells, install, plan, report, sampling, sections, servers
from benchmarks.engine.peers.client import Sample, Target, closed_loop, send
from benchmarks.engine.peers.processes import PROC, Reading, memory, stat, tree
from benchmarks.engine.peers.prompts import Prompts
from benchmarks.engine.peers.records import Cpu, Gap, Load, Pool, Prefix, Profile, Record, Spread, Start, Steps, Store
from benchmarks.engine.peers.stats import percentile, ratio
from benchmarks.engine.peers.tables import FIGURES, Loads, number
from hypothesis import given, settings
from hypothesis import strategies as st

SETTINGS = plan.Settings(("headrace", "vllm", "llama.cpp"), 9, 3, (1, 8))


@pytest.mark.parametrize(("p", "value"), [(0, 1.0), (50, 2.5), (100, 4.0), (95, 3.85)], ids=str)
def test_percentiles_lie_between_neighbours(p: float, value: float) -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], p) == pytest.approx(value)


def test_a_ratio_of_paired_rounds_ignores_what_whole_rounds_share() -> None:
    hour = [1.0, 3.0, 0.5, 2.0, 1.5, 0.7, 2.5, 1.1, 0.9]
    found = ratio([2 * x for x in hour], hour)
    assert found == pytest.approx((2.0, 2.0, 2.0))


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(1, 100), st.floats(1, 100)), min_size=2, max_size=12))
def test_an_interval_holds_its_order_and_is_repeatable(pairs: list[tuple[float, float]]) -> None:
    ours, theirs = zip(*pairs, strict=True)
    found = ratio(ours, theirs)
    assert found.low <= found.high
    assert found == ratio(ours, theirs)
    assert min(ours) / max(theirs) <= found.low + 1e-9
    assert found.high <= max(ours) / min(theirs) + 1e-9


@pytest.mark.parametrize(("ours", "theirs"), [([], []), ([1.0], [1.0, 2.0])], ids=["nothing", "unpaired"])
def test_a_ratio_needs_the_same_rounds_on_both_sides(ours: list[float], theirs: list[float]) -> None:
    with pytest.raises(ValueError, match="rounds stand against"):
        ratio(ours, theirs)


def test_gaps_count_from_when_all_streams_run_until_the_long_prompt_is_answered() -> None:
    early = Sample(times=[0.0, 5.0, 10.0, 10.1, 10.2, 11.2, 11.3, 19.0])
    late = Sample(times=[10.0, 10.1, 10.2, 10.3, 11.4, 11.5])
    usual, beside, largest = cells.gaps_around([early, late], sent=10.25, answered=11.25)
    assert usual == pytest.approx(0.1)  # what came while `late` was still in prefill does not count
    assert largest == pytest.approx(1.1)
    assert beside == pytest.approx(0.55)  # of 1.0, 0.1, 0.1, 1.1: the gap of 7.7 s begins after the answer


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("model.embed_tokens.weight", "token_embd.weight"),
        ("model.norm.weight", "output_norm.weight"),
        ("model.layers.11.self_attn.q_norm.weight", "blk.11.attn_q_norm.weight"),
        ("model.layers.0.mlp.down_proj.weight", "blk.0.ffn_down.weight"),
    ],
)
def test_tensors_have_names_of_the_other_format(name: str, expected: str) -> None:
    assert make_model.gguf_name(name) == expected


def test_bf16_widens_to_the_same_number() -> None:
    import torch

    values = torch.randn(64).to(torch.bfloat16)
    wide = make_model.widen(values.view(torch.uint8).numpy().tobytes())
    assert torch.equal(torch.frombuffer(bytearray(wide), dtype=torch.float32), values.float())


def test_rows_that_are_no_text_are_silent() -> None:
    vocab = {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2, "Ġword": 3, "x)Ċ": 4, "Ã": 5, "ĉ": 6}
    assert make_model.quiet(vocab) == [0, 1, 2, 5, 6]


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Prompts:
    """Over a small tokenizer, in which the words of its corpus are tokens."""
    words = [a + b + c for a in "bdfg" for b in "aeiou" for c in "lmnrst"]
    folder = tmp_path_factory.mktemp("model")
    texts = (" " + " ".join(words) for _ in range(50))
    make_model.train_tokenizer(texts, 400).save(str(folder / "tokenizer.json"))
    return Prompts(folder)


@settings(deadline=None)
@given(tokens=st.integers(80, 400), seed=st.text("abc/0123456789", max_size=9))
def test_prompts_have_exactly_the_tokens_asked_for(prompts: Prompts, tokens: int, seed: str) -> None:
    message = prompts.message(seed, tokens)
    assert prompts.tokens(message) == tokens
    assert prompts.message(seed, tokens) == message
    assert prompts.message(seed + "x", tokens)[:24] != message[:24]


def test_prompts_that_share_a_prefix_differ_after_it(prompts: Prompts) -> None:
    shared = prompts.words("shared", 100)
    one, other = (prompts.message(end, 200, shared) for end in ("one", "other"))
    assert one.startswith(shared)
    assert other.startswith(shared)
    assert one != other
    assert prompts.tokens(one) == prompts.tokens(other) == 200


ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,'
    b'"prompt_tokens_details":{"cached_tokens":4}}}\n\ndata: [DONE]\n\n'
)


def said(text: str) -> bytes:
    """An event with text, as servers write it."""
    return b"data: " + json.dumps({"choices": [{"delta": {"content": text}}]}).encode() + b"\n\n"


async def answered(pieces: list[bytes], status: str = "200 OK", echo: str = "", end: bytes = b"0\r\n\r\n") -> Sample:
    """What the client makes of a server that writes these pieces, each in an HTTP chunk of its own."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        size = next(int(line.split()[1]) for line in head.splitlines() if line.lower().startswith(b"content-length"))
        await reader.readexactly(size)
        writer.write(f"HTTP/1.1 {status}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        for piece in pieces:
            writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            await writer.drain()
        writer.write(end)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        target = Target(server.sockets[0].getsockname()[1], "m", echo=echo)
        return await send(target, target.body("hello", 2), Sample())


@pytest.mark.parametrize(
    "pieces",
    [
        [ROLE, said("a"), said("b"), USAGE],
        [ROLE + said("a"), (said("b") + USAGE)[:30], (said("b") + USAGE)[30:]],
        [(ROLE + said("a") + said("b") + USAGE).replace(b"\n", b"\r\n")],
    ],
    ids=["an event each", "events cut anywhere", "with carriage returns"],
)
def test_a_stream_is_read_however_it_is_cut(pieces: list[bytes]) -> None:
    sample = cells.run(answered(pieces))
    assert (sample.error, sample.text, len(sample.times)) == ("", "ab", 2)
    assert (sample.prompt_tokens, sample.output_tokens, sample.cached_tokens) == (9, 2, 4)
    assert sample.sent <= sample.times[0] <= sample.ended


def test_an_echo_of_the_prompt_is_no_first_token() -> None:
    pieces = [said("hello"), said("<|im_start|>assistant"), said("a"), USAGE]
    sample = cells.run(answered(pieces, echo="<|im_start|>assistant"))
    assert (sample.text, len(sample.times)) == ("a", 1)
    assert cells.run(answered(pieces[2:], echo="<|im_start|>assistant")).text == "a"


@pytest.mark.parametrize(
    ("pieces", "status", "end", "error"),
    [
        ([b'{"error": "hello is not allowed"}'], "400 Bad Request", b"0\r\n\r\n", "HTTP 400"),
        ([said("a"), b'data: {"error": {"message": "hello"}}\n\n'], "200 OK", b"0\r\n\r\n", "error event"),
        ([said("a")], "200 OK", b"", "closed early"),
        ([ROLE, USAGE], "200 OK", b"0\r\n\r\n", "no text"),
        ([b"data: {\n\n"], "200 OK", b"0\r\n\r\n", "HttpParserCallbackError"),
    ],
    ids=["refused", "error event", "cut off", "empty", "no JSON"],
)
def test_errors_are_kinds_and_quote_nothing(pieces: list[bytes], status: str, end: bytes, error: str) -> None:
    assert cells.run(answered(pieces, status, end=end)).error == error


def test_nobody_listens() -> None:
    samples, _ = cells.run(closed_loop(Target(servers.free_port(), "m"), [b"{}"] * 3, 2))
    assert [sample.error for sample in samples] == ["ConnectionRefusedError"] * 3


@pytest.fixture
def family() -> Iterator[subprocess.Popen[bytes]]:
    """A process with a child; both use CPU, and say so."""
    burn = "import time\nwhile time.process_time() < 0.2: pass\nprint('used', flush=True)\ninput()"
    code = f"import subprocess, sys\nchild = subprocess.Popen([sys.executable, '-c', {burn!r}])\n{burn}"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    yield process
    process.communicate(b"\n\n")


def test_cpu_time_is_of_the_whole_family(family: subprocess.Popen[bytes]) -> None:
    before = Reading({}, {}, 0.0, time.process_time(), 0.0)
    assert family.stdout is not None
    assert [family.stdout.readline(), family.stdout.readline()] == [b"used\n"] * 2
    used = Reading.take(family.pid).since(before)
    assert len(tree(family.pid)) == len(used.server) == 2
    assert used.total > 0.35
    resident, peak = memory(family.pid)
    assert 0 < resident <= peak


def record(server: str, round_: int, concurrency: int, seconds: float, **changed: object) -> Load:
    """A closed loop of 100 tokens."""
    spread = Spread(seconds, 2 * seconds, 3 * seconds, 4 * seconds)
    load = Load(
        server=server,
        block=round_ // 3,
        round=round_,
        concurrency=concurrency,
        requests=2,
        errors=[],
        seconds=seconds,
        prompt_tokens=256,
        output_tokens=100,
        cached_tokens=0,
        events=100,
        ttft_ms=spread,
        itl_ms=spread,
        cpu=Cpu({"python 1": 0.5, "python 2": 1.5}, {"core": 2.0}, 0.1, 0.0),
        digests=["a", "b" if server == "headrace" else "c"],
    )
    return msgspec.structs.replace(load, **changed)


def everything() -> list[Record]:
    """At least one record of each kind."""
    spread = Spread(1.0, 2.0, 3.0, 4.0)
    found: list[Record] = [
        record(name, round_, c, seconds * (1 + round_ / 100))
        for name, seconds in (("headrace", 1.0), ("vllm", 2.0), ("llama.cpp", 4.0))
        for round_ in range(3)
        for c in (1, 8)
    ]
    found.append(record("vllm", 3, 8, 1.0, errors=["HTTP 500"]))
    start = {"healthy_s": 2.0, "first_token_s": 3.0, "resident_bytes": 1 << 30, "peak_bytes": 2 << 30}
    found.append(Start(server="headrace", block=0, processes=2, leaks=0, **start))
    gap = {"errors": [], "itl_ms": 20.0, "itl_beside_ms": 30.0, "ttft_ms": 900.0, "prompt_tokens": 2000}
    found.append(Gap(server="headrace", block=0, largest_ms=90.0, **gap))
    found.append(Gap(server="vllm", block=0, largest_ms=2000.0, **gap))
    prefix = {"cold_ms": [800.0], "warm_ms": [100.0], "cached_tokens": [1152], "prompt_tokens": [1280]}
    found.append(Prefix(server="headrace", block=0, errors=[], compared=1, equal=1, **prefix))
    for pages, seconds in ((120, 10.0), (24, 20.0)):
        pool = {"repeat": 0, "demand_pages": 80, "errors": [], "output_tokens": 1000, "preemptions": 3}
        found.append(Pool(pages=pages, seconds=seconds, ttft_ms=spread, itl_ms=spread, digests=["a"], **pool))
    found.append(Steps(server="headrace", rows=[("decode 8", 20.0, 19.0, 38.0)]))
    found.append(Profile(server="headrace", what="decode 8", rows=[("linear", 0.7)]))
    return found


def test_records_outlive_the_process_and_the_latest_counts(tmp_path: Path) -> None:
    store = Store(tmp_path / "cells.jsonl")
    for item in everything():
        store.add(item)
    store.add(record("vllm", 0, 8, 9.0))
    again = Store(tmp_path / "cells.jsonl")
    assert again.all() == store.all()
    assert len(again.all()) == len(everything())
    assert Loads.of(again.all()).cells["vllm", 8][0].seconds == 9.0
    assert again.has("load", "vllm", "2", "1")
    assert not again.has("load", "vllm", "4", "1")
    assert not again.has("load", "vllm", "3", "8")  # with errors: it is measured again when the run goes on


def test_only_loops_without_errors_are_compared() -> None:
    loads = Loads.of(everything())
    found = loads.against("headrace", "vllm", 8, FIGURES["tokens/s"])
    assert found is not None
    assert found.value == pytest.approx(2.0)
    assert len(loads.values("vllm", 8, FIGURES["tokens/s"])) == 3
    assert loads.against("headrace", "transformers", 8, FIGURES["tokens/s"]) is None
    assert loads.agreement("headrace", "vllm") == (6, 12)
    assert loads.values("vllm", 1, FIGURES["CPU s per 1,000 tokens"]) == [20.0] * 3


def test_a_report_says_everything_and_can_be_made_again(tmp_path: Path) -> None:
    machine = {"processor": "a processor"}
    result = report.Result(SETTINGS, machine, everything(), {"transformers": "it could not be installed"})
    report.write(result, tmp_path)
    text = (tmp_path / "report.md").read_text()
    for expected in (
        "**2.00** (2.00–2.00)",
        "100 ×",
        "37 %",
        "HTTP 500 × 1",
        "it could not be installed",
        "50 % of 12",
    ):
        assert expected in text
    assert {path.name for path in tmp_path.glob("*.svg")} == {"throughput.svg", "ttft.svg", "cpu.svg", "pool.svg"}
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["medians"]["vllm"]["8"]["tokens/s"] == pytest.approx(100 / 2.02)
    assert results["headrace over peer: median, low, high"]["vllm"]["8"]["tokens/s"][0] == pytest.approx(2.0)
    assert "digests" not in results["records"][0] or not results["records"][0]["digests"]


def test_samples_are_put_together_by_name() -> None:
    text = """
    41.50%  libtorch_cpu.so     [.] gemm_kernel
    20.00%  [JIT] tid 812       [.] 0x00007f1a2c3d4e5f
    10.00%  [JIT] tid 813       [.] 0x00007f1a2c3d4e60
     5.25%  [kernel.kallsyms]   [k] finish_task_switch
"""
    assert sampling.parse(text) == [
        ("libtorch_cpu.so: gemm_kernel", 0.415),
        ("code made at run time (matrix products)", 0.3),
        ("[kernel.kallsyms]: finish_task_switch", 0.0525),
    ]


def test_floors_are_held_by_medians_and_named_where_not() -> None:
    slow = [record("headrace", 0, 8, 2.0), record("vllm", 0, 8, 1.0), record("llama.cpp", 0, 8, 3.0)]
    lines = sections.floors(Loads.of(slow), slow).splitlines()
    verdicts = {line.split("|")[1].strip(): line.split("|")[4].strip() for line in lines if "over" in line}
    assert verdicts == {
        "tokens/s over vllm, c=8": "**no**",
        "tokens/s over llama.cpp, c=8": "yes",
        "TTFT p50, ms over vllm, c=8": "**no**",
    }


@pytest.mark.parametrize(
    ("value", "text"), [(None, "–"), (1234.5, "1,234"), (45.678, "45.7"), (1.234, "1.23"), (0.0, "0.00")], ids=str
)
def test_numbers_are_short(value: float | None, text: str) -> None:
    assert number(value) == text


def test_servers_get_only_their_own_settings_of_threads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    monkeypatch.setenv("GOMP_SPINCOUNT", "0")
    setup = servers.Setup(tmp_path, tmp_path, 32, (0, 1))
    for server in servers.SERVERS.values():
        found = servers.clean_environment(server.environment(setup))
        assert "OMP_WAIT_POLICY" not in found
        assert "GOMP_SPINCOUNT" not in found
        assert found["PATH"] == os.environ["PATH"]
        assert "127.0.0.1" in (*server.command(setup, 5), "127.0.0.1" if server.name == servers.HEADRACE else "")


def test_a_server_that_ends_at_once_is_told_with_its_log(tmp_path: Path) -> None:
    setup = servers.Setup(tmp_path, tmp_path, 1)
    with (
        pytest.raises(servers.ServerError, match="ended with 3 while it started"),
        servers.running(servers.SERVERS["headrace"], setup, tmp_path / "log", [sys.executable, "-c", "exit(3)"]),
    ):
        pytest.fail("it never was healthy")


def test_a_server_is_stopped_with_its_children(tmp_path: Path) -> None:
    code = (
        "import http.server, subprocess, sys\n"
        "subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
        "class H(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self): self.send_response(200); self.end_headers()\n"
        "http.server.HTTPServer(('127.0.0.1', PORT), H).serve_forever()\n"
    )
    setup = servers.Setup(tmp_path, tmp_path, 1)
    command = [sys.executable, "-c", code]
    with servers.running(servers.SERVERS["headrace"], setup, tmp_path / "log", command) as alive:
        family = tree(alive.pid)
        assert len(family) == 2
    assert not [pid for pid in family if (found := stat(PROC / str(pid) / "stat")) and found[1][0] != "Z"]


@pytest.mark.parametrize(
    ("requirement", "named"),
    [("torch==2.13.0+cpu", True), ("torchvision", True), ("torch-geometric", False), ("xgrammar>=0.1; x", False)],
)
def test_a_pinned_build_of_torch_is_left_out(requirement: str, named: bool) -> None:
    assert install._names(requirement, ("torch", *install.UNWANTED)) is named


def test_another_version_of_a_peer_has_another_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = install.folder_of(tmp_path, "vllm")
    monkeypatch.setitem(install.VERSIONS, "vllm", "0.33.0")
    assert install.folder_of(tmp_path, "vllm") != before
    assert not install.installed(tmp_path, "vllm")
