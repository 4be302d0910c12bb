"""Trace readers by the columns of the files, the packed form, and arrivals by seed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headrace.bench import arrivals, pack, packed
from headrace.bench.readers import TraceError, read
from headrace.bench.trace import Lengths, Series, Trace

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:17:03.9799600,4808,10\r\n"
    "2023-11-16 18:17:04.0319600,3180,8\r\n"
    "2023-11-16 18:17:06.9799607,12,0"
)
MOONCAKE = (
    '{"timestamp": 0, "input_length": 1000, "output_length": 50, "hash_ids": [0, 1]}\n'
    '{"timestamp": 3000, "input_length": 1300, "output_length": 7, "hash_ids": [0, 1, 9]}\n'
    '{"timestamp": 1500, "input_length": 10, "output_length": 1, "hash_ids": [4]}\n'
)
SERVEGEN = (
    "window_start_s,total_rate_rps,rate_weighted_cv,active_clients,max_client_rate_rps\n"
    "0,10.0,2.0,3,1.0\n600,0.0,0.0,0,0.0\n1200,20.0,1.0,3,1.0\n2400,40.0,1.0,3,1.0\n"
)
BURST = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,1,2,M,100,20,120,Conversation log\n6,1,2,M,50,0,50,Conversation log\n9,1,2,M,30,5,35,API log\n"
)
VIDUR = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n3772,54,3826,69.85\n2015,156,2171,12.9\n"


def _file(folder: Path, text: str, name: str = "some.txt") -> Path:
    path = folder / name
    path.write_bytes(text.encode())
    return path


def test_azure_has_seven_fractional_digits_and_crlf(tmp_path: Path) -> None:
    trace = read(_file(tmp_path, AZURE))
    assert isinstance(trace, Trace)
    assert trace.arrival_s.tolist() == pytest.approx([0.0, 0.052, 3.0])
    assert trace.prompt.tolist() == [4808, 3180, 12]
    assert trace.output.tolist() == [10, 8, 1]  # no answer is shorter than a token


def test_mooncake_is_sorted_with_its_blocks(tmp_path: Path) -> None:
    trace = read(_file(tmp_path, MOONCAKE))
    assert isinstance(trace, Trace) and trace.blocks is not None
    assert trace.arrival_s.tolist() == [0.0, 1.5, 3.0]
    assert [trace.blocks.of(i).tolist() for i in range(3)] == [[0, 1], [4], [0, 1, 9]]
    assert trace.prompt.tolist() == [1000, 10, 1300]


def test_rate_gaps_are_interpolated(tmp_path: Path) -> None:
    series = read(_file(tmp_path, SERVEGEN))
    assert isinstance(series, Series)
    assert series.rate.tolist() == [10.0, 15.0, 20.0, 30.0, 40.0]  # one window is zero, one is absent
    assert (series.gaps, series.window_s) == (2, 600.0)


def test_burst_leaves_failures_out(tmp_path: Path) -> None:
    trace = read(_file(tmp_path, BURST))
    assert isinstance(trace, Trace)
    assert trace.arrival_s.tolist() == [0.0, 4.0]
    assert trace.output.tolist() == [20, 5]


def test_lengths_alone(tmp_path: Path) -> None:
    lengths = read(_file(tmp_path, VIDUR))
    assert isinstance(lengths, Lengths)
    assert lengths.prompt.tolist() == [3772, 2015]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a,b\n1,2\n", "unknown columns a, b"),
        (AZURE.replace("3180", "many"), "line 3: ContextTokens is 'many'"),
        (AZURE.replace("2023-11-16 18:17:04.0319600", "noon"), "line 3: TIMESTAMP 'noon' is no time"),
        (MOONCAKE.replace('"input_length": 1300, ', ""), "line 2: Object missing required field `input_length`"),
        (MOONCAKE + "{broken", "line 4"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "no requests"),
        (AZURE.replace("3180", "nan"), "cannot be"),
        (AZURE.replace("3180", "1000000000"), "line 3: ContextTokens of 1e.09 cannot be"),
        (AZURE.replace("2023-11-16 18:17:04", "1923-11-16 18:17:04"), "some: 36525 days from the first arrival"),
        (MOONCAKE.replace('"input_length": 1300', '"input_length": -1'), "line 2: input_length of -1 cannot be"),
        (MOONCAKE.replace('"input_length": 1300', '"input_length": Infinity'), "line 2: "),
        (SERVEGEN + SERVEGEN.splitlines()[1] + "\n", "some: two windows start at the same time"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(TraceError, match=why):
        read(_file(tmp_path, text))


@pytest.mark.parametrize("name", ["some.npz", "some.txt"])
def test_a_file_of_something_else_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"\xff\xfe\0\1")
    with pytest.raises(TraceError, match=str(path)):
        read(path)


def test_a_file_is_packed_where_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert pack.main([str(_file(tmp_path, AZURE))]) == 0
    assert isinstance(read(tmp_path / "some.npz"), Trace)
    assert pack.main(["nothing.csv"]) == 2
    assert "nothing.csv" in capsys.readouterr().err


@pytest.mark.parametrize("text", [AZURE, MOONCAKE, SERVEGEN, VIDUR], ids=["azure", "mooncake", "servegen", "vidur"])
def test_packed_is_the_same(tmp_path: Path, text: str) -> None:
    before = read(_file(tmp_path, text))
    packed.save(before, tmp_path / "some.npz")
    after = read(tmp_path / "some.npz")
    assert type(after) is type(before) and after.name == before.name
    if isinstance(before, Series) and isinstance(after, Series):
        assert after.rate.tolist() == before.rate.tolist() and after.gaps == before.gaps
    if isinstance(before, Trace) and isinstance(after, Trace):
        assert np.allclose(after.arrival_s, before.arrival_s, atol=1e-6)
        assert after.duration_s == pytest.approx(before.duration_s, abs=1e-6)
        assert (after.blocks is None) == (before.blocks is None)
        if before.blocks is not None and after.blocks is not None:
            assert after.blocks.ids.tolist() == before.blocks.ids.tolist()
            assert after.blocks.ends.tolist() == before.blocks.ends.tolist()
    if not isinstance(before, Series) and not isinstance(after, Series):
        assert after.prompt.tolist() == before.prompt.tolist() and after.output.tolist() == before.output.tolist()


ROWS = {
    "azure_llm_2023_code": (8819, 3436, 1469, 13),
    "azure_llm_2023_conv": (19366, 3502, 1020, 129),
    "mooncake_fast25_conversation": (12031, 3537, 6909, 350),
    "mooncake_fast25_synthetic": (3993, 1022, 11587, 69),
}


@pytest.mark.parametrize("name", sorted(ROWS))
def test_packed_traces_are_those_of_the_sources(name: str) -> None:
    trace = packed.load(packed.FOLDER / f"{name}.npz")
    assert isinstance(trace, Trace)
    found = len(trace), round(float(trace.arrival_s[-1])), int(np.median(trace.prompt)), int(np.median(trace.output))
    assert found == pytest.approx(ROWS[name], abs=1)


def test_packed_files_are_small() -> None:
    assert len(packed.names()) == 9
    assert max(path.stat().st_size for path in packed.FOLDER.glob("*.npz")) < 1_000_000


def test_quantised_times_are_spread_within_the_quantum() -> None:
    trace = packed.load(packed.FOLDER / "mooncake_fast25_conversation.npz")
    assert isinstance(trace, Trace)
    spread = arrivals.spread_quantised(trace, 1)
    assert len(np.unique(spread.arrival_s)) == len(trace)
    assert (np.diff(spread.arrival_s) >= 0).all()
    assert sorted(spread.prompt.tolist()) == sorted(trace.prompt.tolist())
    per_minute = [np.histogram(t.arrival_s, bins=59, range=(0, 3540))[0] for t in (trace, spread)]
    assert np.abs(per_minute[0] - per_minute[1]).max() <= 30  # one batch or so crosses an edge
    azure = packed.load(packed.FOLDER / "azure_llm_2023_conv.npz")
    assert isinstance(azure, Trace)
    assert arrivals.spread_quantised(azure, 1) is azure


def test_copies_keep_lengths_and_bursts() -> None:
    trace = packed.load(packed.FOLDER / "azure_llm_2023_code.npz")
    assert isinstance(trace, Trace)
    many = arrivals.multiply(trace, 3, 1)
    assert len(many) == 3 * len(trace)
    assert int(many.prompt.sum()) == 3 * int(trace.prompt.sum())
    counts = [np.histogram(t.arrival_s, bins=350, range=(0, 3500))[0] for t in (trace, many)]
    assert np.corrcoef(counts[0], counts[1])[0, 1] > 0.99


@pytest.mark.parametrize("cv", [0.5, 1.0, 2.5])
def test_renewal_has_the_rate_and_the_cv(cv: float) -> None:
    series = Series("s", 600.0, np.full(6, 20.0), np.full(6, cv))
    lengths = Lengths("l", np.array([10, 20]), np.array([1, 2]))
    trace = arrivals.renewal(series, lengths, 7)
    gaps = np.diff(trace.arrival_s)
    assert len(trace) == pytest.approx(72_000, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)
    again = arrivals.renewal(series, lengths, 7)
    assert np.array_equal(again.arrival_s, trace.arrival_s) and np.array_equal(again.prompt, trace.prompt)
    assert not np.array_equal(arrivals.renewal(series, lengths, 8).arrival_s[:50], trace.arrival_s[:50])


def test_thinning_and_fraction() -> None:
    trace = packed.load(packed.FOLDER / "azure_llm_2023_conv.npz")
    assert isinstance(trace, Trace)
    assert arrivals.thin(trace, 2.0, 1).rate == pytest.approx(2.0, rel=0.05)
    first = trace.first(0.1)
    assert first.duration_s == pytest.approx(trace.duration_s * 0.1)
    assert float(first.arrival_s[-1]) < first.duration_s
