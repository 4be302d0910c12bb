"""Small plots as SVG text: lines over time, and bars. No dependency, no script, one colour for each series."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 760, 260
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 34, 40
COLOURS = ("#1f6fb2", "#d1495b", "#2e8b57", "#8a6d3b", "#6a4c93", "#444444")


@dataclass(frozen=True)
class Line:
    """One series."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class Axes:
    """What stands around a plot."""

    title: str
    x: str
    y: str


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers from `low` to `high`, at most `most` + 1."""
    if not high > low:
        return [low]
    raw = (high - low) / most
    scale = 10.0 ** math.floor(math.log10(raw))
    step = next(s * scale for s in (1, 2, 5, 10) if s * scale >= raw - 1e-12)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 10) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def lines(axes: Axes, series: Sequence[Line]) -> str:
    """A line plot; y begins at zero."""
    x_low = min((min(s.x) for s in series if s.x), default=0.0)
    x_high = max((max(s.x) for s in series if s.x), default=1.0)
    y_high = max((max(s.y) for s in series if s.y), default=1.0) * 1.05 or 1.0
    frame = _Frame(x_low, max(x_high, x_low + 1e-9), y_high)
    parts = [_head(axes), frame.grid(axes)]
    for index, item in enumerate(series):
        points = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in zip(item.x, item.y, strict=True))
        colour = COLOURS[index % len(COLOURS)]
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.4" points="{points}"/>')
    parts.append(_legend([item.name for item in series]))
    return "".join((*parts, "</svg>\n"))


def bars(axes: Axes, names: Sequence[str], values: Sequence[float], mark: float | None = None) -> str:
    """A bar for each name; a dashed line at `mark`."""
    high = max((*values, mark or 0.0, 1e-9)) * 1.08
    frame = _Frame(0.0, float(max(1, len(names))), high)
    parts = [_head(axes), frame.grid(axes, x_ticks=False)]
    for index, (name, value) in enumerate(zip(names, values, strict=True)):
        x, y = frame.x(index + 0.15), frame.y(value)
        width, height = frame.x(0.7) - frame.x(0), frame.y(0) - y
        parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{COLOURS[0]}"/>'
            f'<text x="{x + width / 2:.1f}" y="{y - 4:.1f}" text-anchor="middle">{value:.2f}</text>'
            f'<text x="{x + width / 2:.1f}" y="{HEIGHT - BOTTOM + 14}" text-anchor="middle">{escape(name)}</text>'
        )
    if mark is not None:
        y = frame.y(mark)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{COLOURS[1]}" '
            'stroke-dasharray="5 4"/>'
        )
    return "".join((*parts, "</svg>\n"))


@dataclass(frozen=True)
class _Frame:
    """From values to points."""

    x_low: float
    x_high: float
    y_high: float

    def x(self, value: float) -> float:
        return LEFT + (value - self.x_low) / (self.x_high - self.x_low) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - value / self.y_high * (HEIGHT - TOP - BOTTOM)

    def grid(self, axes: Axes, x_ticks: bool = True) -> str:
        parts = []
        for tick in ticks(0.0, self.y_high):
            y = self.y(tick)
            parts.append(
                f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
                f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>'
            )
        for tick in ticks(self.x_low, self.x_high, 10) if x_ticks else ():
            x = self.x(tick)
            parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 14}" text-anchor="middle">{tick:g}</text>')
        middle = (HEIGHT - BOTTOM + TOP) / 2
        parts.append(
            f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">{escape(axes.x)}</text>'
            f'<text transform="translate(13 {middle}) rotate(-90)" text-anchor="middle">{escape(axes.y)}</text>'
        )
        return "".join(parts)


def _head(axes: Axes) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="11" role="img"><title>{escape(axes.title)}</title>'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>'
        f'<text x="{LEFT}" y="16" font-size="13">{escape(axes.title)}</text>'
    )


def _legend(names: Sequence[str]) -> str:
    parts = []
    x = float(LEFT)
    for index, name in enumerate(names):
        colour = COLOURS[index % len(COLOURS)]
        parts.append(
            f'<rect x="{x:.0f}" y="22" width="10" height="3" fill="{colour}"/>'
            f'<text x="{x + 14:.0f}" y="28">{escape(name)}</text>'
        )
        x += 30 + 6.2 * len(name)
    return "".join(parts)
