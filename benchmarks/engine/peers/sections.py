"""The report's sections, each from the records it is about; an empty string where there is none. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

from benchmarks.engine.peers import cells, pool
from benchmarks.engine.peers.records import Gap, Load, Pool, Prefix, Profile, Record, Start, Steps
from benchmarks.engine.peers.servers import HEADRACE
from benchmarks.engine.peers.stats import Ratio
from benchmarks.engine.peers.tables import COMPARED, FIGURES, Loads, middle, number, table

R = TypeVar("R", bound=Record)
Rounds = dict[int, dict[str, tuple[float, float, float]]]  # of in-process steps: round, step, its times


class Floor(NamedTuple):
    """What Headrace must reach beside a peer."""

    figure: str
    peer: str
    concurrencies: tuple[int, ...]
    least: float | None = None
    most: float | None = None

    def holds(self, found: Ratio) -> bool:
        """By its median."""
        return (self.least is None or found.value >= self.least) and (self.most is None or found.value <= self.most)


FLOORS = (
    Floor("tokens/s", "vllm", (8,), least=0.8),
    Floor("tokens/s", "vllm", (16, 32), least=0.7),
    Floor("tokens/s", "llama.cpp", (8, 16, 32), least=1.0),
    Floor("TTFT p50, ms", "vllm", (8, 16), most=1.0),
)
MOST_GAP = 5.0  # times the streams' median


def by_server(records: Iterable[Record], kind: type[R]) -> dict[str, list[R]]:
    """Records of one kind, by server."""
    found: dict[str, list[R]] = defaultdict(list)
    for record in records:
        if isinstance(record, kind):
            found[getattr(record, "server", HEADRACE)].append(record)
    return dict(found)


def _interval(found: Ratio | None) -> str:
    return "–" if found is None else f"**{found.value:.2f}** ({found.low:.2f}–{found.high:.2f})"


def ratios(loads: Loads) -> str:
    """Headrace over each peer."""
    rows = [
        [peer, name, *(_interval(loads.against(HEADRACE, peer, c, FIGURES[name])) for c in loads.concurrencies)]
        for peer in loads.servers
        if peer != HEADRACE
        for name in COMPARED
    ]
    if HEADRACE not in loads.servers or not rows:
        return ""
    text = (
        "## Headrace over its peers\n\nMedian of Headrace over median of the peer, with the 95 % interval of a paired "
        "bootstrap over rounds. Above 1 is better for tokens/s, below 1 for the others.\n\n"
    )
    return text + table(["peer", "figure", *(f"c={c}" for c in loads.concurrencies)], rows)


def floors(loads: Loads, records: Sequence[Record]) -> str:
    """What must be reached, and whether it is."""
    rows = []
    for floor in FLOORS:
        for c in floor.concurrencies:
            found = loads.against(HEADRACE, floor.peer, c, FIGURES[floor.figure])
            if found is not None:
                bound = f"≥ {floor.least}" if floor.least is not None else f"≤ {floor.most}"
                verdict = "yes" if floor.holds(found) else "**no**"
                rows.append([f"{floor.figure} over {floor.peer}, c={c}", bound, _interval(found), verdict])
    gap = middle([r.largest_ms / r.itl_ms for r in by_server(records, Gap).get(HEADRACE, []) if not r.errors])
    if gap is not None:
        verdict = "yes" if gap <= MOST_GAP else "**no**"
        rows.append(
            ["largest gap beside a long prompt, over the median gap", f"≤ {MOST_GAP:g}", f"**{gap:.1f}**", verdict]
        )
    return "## Floors\n\n" + table(["", "bound", "found", "held"], rows) if rows else ""


def gaps(records: Sequence[Record]) -> str:
    """Streams beside a long prompt."""
    rows = []
    for server, found in by_server(records, Gap).items():
        good = [r for r in found if not r.errors and r.itl_ms]
        rows.append(
            [
                server,
                *(
                    number(middle([getattr(r, name) for r in good]))
                    for name in ("itl_ms", "itl_beside_ms", "largest_ms")
                ),
                f"{number(middle([r.largest_ms / r.itl_ms for r in good]))} ×",
                number(middle([r.ttft_ms for r in good])),
            ]
        )
    head = [
        "server",
        "median gap before, ms",
        "median gap beside, ms",
        "largest gap, ms",
        "over the median",
        "TTFT, ms",
    ]
    text = (
        f"## {cells.STREAMS} streams, and a prompt of {cells.LONG_PROMPT:,} tokens arrives\n\n"
        "Gaps between token events of the streams; TTFT is the long prompt's. Once for each start, medians.\n\n"
    )
    return text + table(head, rows) if rows else ""


def prefixes(records: Sequence[Record]) -> str:
    """Warm over cold."""
    rows = []
    for server, found in by_server(records, Prefix).items():
        cold = middle([ms for r in found for ms in r.cold_ms])
        warm = middle([ms for r in found for ms in r.warm_ms])
        cached = middle([float(n) for r in found for n in r.cached_tokens])
        share = "–" if not cold or warm is None else f"**{warm / cold:.2f}**"
        same = f"{sum(r.equal for r in found)} of {sum(r.compared for r in found)}"
        rows.append([server, number(cold), number(warm), share, number(cached), same])
    text = (
        f"## A prompt of {cells.SHARED + cells.ALONE:,} tokens, nine tenths shared\n\nTTFT alone on the server. "
        "Equal answers: the same prompt computed cold and warm; only digests of answers are compared.\n\n"
    )
    head = ["server", "cold, ms", "warm, ms", "warm / cold", "cached tokens (as told)", "equal answers"]
    return text + table(head, rows) if rows else ""


def pools(records: Sequence[Record]) -> str:
    """Headrace under a small pool."""
    found: dict[int, list[Pool]] = defaultdict(list)
    for record in by_server(records, Pool).get(HEADRACE, []):
        found[record.pages].append(record)
    whole = found[max(found)][0] if found else None
    rows = []
    for pages, same in sorted(found.items(), reverse=True):
        good = [r for r in same if not r.errors]
        alike = [
            a == b
            for r in good
            if whole and r.repeat == whole.repeat
            for a, b in zip(r.digests, whole.digests, strict=False)
        ]
        rows.append(
            [
                f"{pages} ({100 * pages // pool.DEMAND} %)",
                number(middle([r.output_tokens / r.seconds for r in good])),
                number(middle([float(r.preemptions) for r in good])),
                number(middle([r.ttft_ms.p50 for r in good])),
                number(middle([r.itl_ms.p99 for r in good])),
                f"{sum(alike)} of {len(alike)}",
                str(sum(len(r.errors) for r in same)),
            ]
        )
    text = (
        f"## Headrace with few pages\n\n{pool.REQUESTS} requests of {cells.PROMPT_TOKENS} in and {pool.OUTPUT} out, "
        f"{pool.CONCURRENCY} at a time; all of them at full length need {pool.DEMAND} pages of {pool.PAGE_TOKENS} "
        "tokens. Equal answers: as with the largest pool.\n\n![tokens/s by pages](pool.svg)\n\n"
    )
    head = ["pages", "tokens/s", "preemptions", "TTFT p50, ms", "ITL p99, ms", "equal answers", "errors"]
    return text + table(head, rows) if rows else ""


def starts(records: Sequence[Record]) -> str:
    """Start-up and memory."""
    rows = []
    for server, found in by_server(records, Start).items():
        rows.append(
            [
                server,
                " / ".join(f"{r.healthy_s:.1f}" for r in found),
                number(middle([r.first_token_s for r in found])),
                number(middle([r.resident_bytes / 2**20 for r in found])),
                number(middle([r.peak_bytes / 2**20 for r in found])),
                str(found[0].processes),
                str(sum(r.leaks for r in found)),
            ]
        )
    head = [
        "server",
        "healthy after, s",
        "first token after, s",
        "resident, MiB",
        "peak, MiB",
        "processes",
        "prompts in its log",
    ]
    text = "## Start-up and memory\n\nMemory after the loops: proportional sets of all processes, with their KV.\n\n"
    return text + table(head, rows) if rows else ""


def steps(records: Sequence[Record]) -> str:
    """In-process step times."""
    found = {
        server: {one.round: {row[0]: row[1:] for row in one.rows} for one in all_}
        for server, all_ in by_server(records, Steps).items()
    }
    names = list(dict.fromkeys(name for rounds in found.values() for rows in rounds.values() for name in rows))
    ours, peers = found.get(HEADRACE, {}), [server for server in found if server != HEADRACE]
    rows = [
        [
            name,
            *(cell for rounds in found.values() for cell in _step(rounds, name)),
            *(_over(ours, found[peer], name) for peer in peers),
        ]
        for name in names
    ]
    head = ["step", *(f"{server}: {what}" for server in found for what in ("median, ms", "least, ms", "CPU ms"))]
    head += [f"{HEADRACE} over {peer}" for peer in peers]
    text = (
        "## Steps inside one process\n\nScheduling, batch building, forward, sampling; no HTTP. Medians over "
        "rounds, in which the engines were asked for the same step in turn; the median of the rounds' ratios, and all "
        "of them.\n\n"
    )
    return text + table(head, rows) if rows else ""


def _step(rounds: Rounds, name: str) -> tuple[str, ...]:
    found = [rows[name] for rows in rounds.values() if name in rows]
    return tuple(number(middle(column)) for column in zip(*found, strict=True)) if found else ("–",) * 3


def _over(ours: Rounds, theirs: Rounds, name: str) -> str:
    both = sorted(round for round in ours.keys() & theirs.keys() if name in ours[round] and name in theirs[round])
    ratios = [ours[round][name][0] / theirs[round][name][0] for round in both if theirs[round][name][0]]
    return f"{middle(ratios):.2f} ({', '.join(f'{ratio:.2f}' for ratio in ratios)})" if ratios else "–"


def bounds(loads: Loads) -> str:
    """Who uses the CPUs."""
    rows = []
    for server in loads.servers:
        for c in loads.concurrencies:
            found = list(loads.cells.get((server, c), {}).values())
            if found:
                cores = [number(middle([FIGURES[n](r) for r in found])) for n in FIGURES if n.startswith("cores")]
                rows.append(
                    [
                        server,
                        str(c),
                        *cores,
                        _split([r.cpu.server for r in found], 3),
                        _split([r.cpu.threads for r in found], 4),
                    ]
                )
    head = ["server", "c", "cores of the server", "of the client", "of other programs", "by process", "by thread name"]
    text = "## What bounds each\n\nCores in use during the loops, and who uses them.\n\n"
    return text + table(head, rows) if rows else ""


def _split(all_: Sequence[dict[str, float]], most: int) -> str:
    """Shares of the largest users."""
    total: dict[str, float] = defaultdict(float)
    for one in all_:
        for name, seconds in one.items():
            total[name] += seconds
    whole = sum(total.values()) or 1.0
    largest = sorted(total.items(), key=lambda item: -item[1])[:most]
    return ", ".join(f"{name} {100 * seconds / whole:.0f} %" for name, seconds in largest)


def profiles(records: Sequence[Record]) -> str:
    """Where a step's time goes."""
    parts = []
    for server, found in by_server(records, Profile).items():
        for profile in found:
            rows = [[f"`{name}`", f"{100 * share:.1f} %"] for name, share in profile.rows]
            parts.append(f"### {server}, {profile.what}\n\n" + table(["operation", "share of CPU time"], rows))
    return "## Profiles of a step\n\n" + "\n".join(parts) if parts else ""


def equal_work(loads: Loads) -> str:
    """Whether all servers did the same."""
    rows = []
    for server in loads.servers:
        found: list[Load] = [
            load for (name, _), rounds in loads.cells.items() if name == server for load in rounds.values()
        ]
        requests = sum(load.requests for load in found)
        sums = [
            sum(getattr(load, name) for load in found)
            for name in ("prompt_tokens", "output_tokens", "cached_tokens", "events")
        ]
        equal, compared = loads.agreement(HEADRACE, server)
        agreed = "" if server == HEADRACE or not compared else f"{100 * equal / compared:.0f} % of {compared}"
        rows.append([server, str(requests), *(f"{total / requests:.2f}" for total in sums), agreed])
    head = [
        "server",
        "requests",
        "prompt tokens",
        "output tokens",
        "from its cache",
        "events with text",
        "begin as Headrace's",
    ]
    text = (
        "## Equal work\n\nPer request, as each server counts. The last column: answers to the same prompt that begin "
        "with the same characters; weights are random, so that near ties are many and rounding decides them.\n\n"
    )
    return text + table(head, rows) if rows else ""


def errors(records: Sequence[Record]) -> str:
    """What went wrong."""
    rows = []
    for record in records:
        if wrong := getattr(record, "errors", []):
            kinds = ", ".join(f"{kind} × {wrong.count(kind)}" for kind in sorted(set(wrong)))
            rows.append([type(record).__name__, getattr(record, "server", HEADRACE), kinds])
    return (
        "## Errors\n\nThese cells are in no table above.\n\n" + table(["cell", "server", "errors"], rows)
        if rows
        else ""
    )
