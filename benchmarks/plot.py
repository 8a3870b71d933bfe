"""Draws line charts as SVG files for the documentation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

_WIDTH, _HEIGHT = 640, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 130, 40, 50
_COLOURS = ("#1b6ca8", "#d1495b", "#3a7d44", "#8d5a97", "#b07d2b", "#444444")
_TICKS = 5

Points = Sequence[tuple[float, float]]


def line_chart(
    path: Path, series: Mapping[str, Points], *, title: str, x_label: str, y_label: str, is_log_x: bool = False
) -> None:
    """Draws lines with a legend. If there are few points, the ticks of the x axis are at the points.

    Args:
        path: the file to write.
        series: the points of each line, by the line's name; at least one point in total.
        title, x_label, y_label: the texts of title and axes.
        is_log_x: whether the x axis is logarithmic; then all x are above 0.
    """
    points = [point for line in series.values() for point in line]
    xs = sorted({x for x, _ in points})
    least, most = min(y for _, y in points), max(y for _, y in points)
    room = (most - least or abs(most) or 1.0) * 0.05
    low, high = least - room, most + room

    def across(x: float) -> float:
        scale = math.log if is_log_x else float
        first, last = scale(xs[0]), scale(xs[-1])
        return _LEFT + (scale(x) - first) / ((last - first) or 1.0) * (_WIDTH - _LEFT - _RIGHT)

    def down(y: float) -> float:
        return _HEIGHT - _BOTTOM - (y - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    ticks = xs if len(xs) <= _TICKS + 1 else [xs[0] + (xs[-1] - xs[0]) * part / _TICKS for part in range(_TICKS + 1)]
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        _text(_WIDTH / 2, 22, title, anchor="middle"),
        _text(middle, _HEIGHT - 12, x_label, anchor="middle"),
        _text(_LEFT, _TOP - 6, y_label, anchor="end"),
    ]
    for tick in ticks:
        drawn.append(_text(across(tick), _HEIGHT - _BOTTOM + 18, f"{tick:g}", anchor="middle"))
    for part in range(_TICKS + 1):
        y = least + (most - least) * part / _TICKS
        drawn.append(_line(_LEFT, down(y), _WIDTH - _RIGHT, down(y), "#dddddd"))
        drawn.append(_text(_LEFT - 6, down(y) + 4, f"{y:.4g}", anchor="end"))
    for index, (name, line) in enumerate(series.items()):
        colour = _COLOURS[index % len(_COLOURS)]
        way = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in line)
        drawn.append(f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        y = _TOP + 14 + 18 * index
        drawn.append(_line(_WIDTH - _RIGHT + 10, y - 4, _WIDTH - _RIGHT + 30, y - 4, colour))
        drawn.append(_text(_WIDTH - _RIGHT + 36, y, name))
    path.write_text("\n".join((*drawn, "</svg>", "")))


def _text(x: float, y: float, words: str, *, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'
