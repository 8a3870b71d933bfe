"""The pictures of a report, as SVG without text. The page writes the labels, which so have one size on every screen.

The pictures stretch to the width of the page. Colours are classes of the page's style, for light and dark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from launcher.report.facts import RunFacts
from launcher.report.tables import clock, seconds
from launcher.report.timeline import TRAINING

_WIDTH = 1000.0
_BAND = (26.0, 34.0)  # top and height of the band of phases
_CURVE_HEIGHT = 120.0
_PIXEL = 0.5  # what is narrower is drawn only where nothing else is
_MOST_RATES = 200


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A picture and the labels that the page writes below and beside it."""

    svg: Markup
    left: str = ""
    right: str = ""
    top: str = ""


def timeline(facts: RunFacts) -> Chart | None:
    """The phases of the job as a band, the faults as marks above it; None for a job without time."""
    if facts.start_s is None or facts.end_s is None or facts.end_s <= facts.start_s:
        return None
    begin_s, scale = facts.start_s, _WIDTH / (facts.end_s - facts.start_s)
    top, height = _BAND
    parts = []
    drawn_to = 0.0
    for phase in facts.phases:
        left, right = ((at_s - begin_s) * scale for at_s in (phase.start_s, phase.end_s))
        if right - left < _PIXEL and right <= drawn_to + _PIXEL and phase.kind != TRAINING:
            continue
        left = min(left, max(drawn_to, left - _PIXEL))
        parts.append(
            _rect(
                left,
                top,
                max(right - left, _PIXEL),
                height,
                f"c-{phase.kind}",
                _title(phase.kind, phase.seconds, phase.start_s),
            )
        )
        drawn_to = max(drawn_to, right)
    marked = set()
    for fault in facts.faults:
        at = round((fault.time_s - begin_s) * scale, 0)
        if at in marked:
            continue
        marked.add(at)
        what = f"{fault.kind}{f' on {fault.node}' if fault.node else ''}, {clock(fault.time_s)}"
        parts.append(Markup('<path class="mark" d="M{:.1f} 2 V22"><title>{}</title></path>').format(at, what))
    svg = _svg(parts, top + height + 2, "The phases of the job over time; marks above it are faults")
    return Chart(svg=svg, left=clock(begin_s), right=clock(facts.end_s))


def steps(facts: RunFacts) -> Chart | None:
    """The newest step over time. It falls where steps were lost. None before the second report."""
    if len(facts.points) < 2 or facts.start_s is None or facts.end_s is None or facts.end_s <= facts.start_s:
        return None
    begin_s, scale = facts.start_s, _WIDTH / (facts.end_s - facts.start_s)
    highest = max(step for _, _, step in facts.points) or 1
    lines: dict[int, list[str]] = {}
    for time_s, attempt, step in facts.points:
        x, y = (time_s - begin_s) * scale, 2 + (1 - step / highest) * (_CURVE_HEIGHT - 4)
        lines.setdefault(attempt, []).append(f"{x:.1f} {y:.1f}")
    parts = [_line(points) for points in lines.values()]
    svg = _svg(parts, _CURVE_HEIGHT, "The newest step over time")
    return Chart(svg=svg, left=clock(begin_s), right=clock(facts.end_s), top=f"step {highest}")


def rates(facts: RunFacts) -> Chart | None:
    """Steps per second over time; a gap where nothing trained. None before the second report."""
    found = _rates(facts.points)
    if len(found) < 2 or facts.start_s is None or facts.end_s is None:
        return None
    begin_s, scale = facts.start_s, _WIDTH / (facts.end_s - facts.start_s)
    highest = max(rate for _, _, _, rate in found)
    lines: dict[int, list[str]] = {}
    for since_s, until_s, attempt, rate in found:
        y = 2 + (1 - rate / highest) * (_CURVE_HEIGHT - 4)
        lines.setdefault(attempt, []).extend(f"{(at_s - begin_s) * scale:.1f} {y:.1f}" for at_s in (since_s, until_s))
    svg = _svg([_line(points) for points in lines.values()], _CURVE_HEIGHT, "Steps per second over time")
    return Chart(svg=svg, left=clock(begin_s), right=clock(facts.end_s), top=f"{highest:.3g} steps/s")


def share_bar(facts: RunFacts) -> Chart | None:
    """The classes of time as one bar; None for a job without time."""
    whole_s = sum(facts.time_s.values())
    if not whole_s:
        return None
    parts, at = [], 0.0
    for name, taken_s in facts.time_s.items():
        width = taken_s / whole_s * _WIDTH
        parts.append(_rect(at, 0, max(width, _PIXEL), 22, f"c-{name}", f"{name}: {seconds(taken_s)}"))
        at += width
    return Chart(svg=_svg(parts, 22, "The share of each class of time"))


def _rates(points: Sequence[tuple[float, int, int]]) -> list[tuple[float, float, int, float]]:
    """Begin, end, attempt and steps per second of periods between reports of the same attempt.

    A period that is too short to see, as before a save at the attempt's end, would only be a spike.
    """
    stride = max(1, len(points) // _MOST_RATES)
    least_s = (points[-1][0] - points[0][0]) / (2 * _MOST_RATES) if points else 0.0
    found = []
    since = points[0] if points else None
    for index, point in enumerate(points[1:], 1):
        if since is None or point[1] != since[1]:
            since = point
        elif (index % stride == 0 or index == len(points) - 1) and point[2] > since[2]:
            seconds_between = point[0] - since[0]
            if seconds_between > least_s:
                found.append((since[0], point[0], point[1], (point[2] - since[2]) / seconds_between))
                since = point
    return found


def _title(kind: str, taken_s: float, start_s: float) -> str:
    return f"{kind}: {seconds(taken_s)} from {clock(start_s)}"


def _rect(x: float, y: float, width: float, height: float, style: str, title: str) -> Markup:
    return Markup(
        '<rect class="{}" x="{:.2f}" y="{:.0f}" width="{:.2f}" height="{:.0f}"><title>{}</title></rect>'
    ).format(style, x, y, width, height, title)


def _line(points: Sequence[str]) -> Markup:
    return Markup('<path class="line" d="M{}"/>').format(" L".join(points))


def _svg(parts: Sequence[Markup], height: float, label: str) -> Markup:
    head = Markup(
        '<svg viewBox="0 0 {:.0f} {:.0f}" height="{:.0f}" preserveAspectRatio="none" role="img" aria-label="{}">'
    )
    return head.format(_WIDTH, height, height, label) + Markup("").join(parts) + Markup("</svg>")
