"""The page of `holdfast why`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from launcher.core.outcomes import JobOutcome
from launcher.diagnosis.rules import MEANINGS, Domain, FaultClass
from launcher.history.status import JobStatus
from launcher.history.view import clock, clock_of, duration
from launcher.history.why import FaultStory, first_line
from launcher.history.wording import plural, state_style

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text


def why_page(stories: Sequence[FaultStory], status: JobStatus, title: str, most: int) -> RenderableType:
    """The faults of a job as a page.

    Args:
        stories: its faults, oldest first.
        status: its state.
        title: its id, name and folder.
        most: number of faults to show, the newest ones; 0: all.
    """
    from rich.console import Group
    from rich.text import Text

    shown = stories[-most:] if most else stories
    hidden = stories[: len(stories) - len(shown)]
    parts: list[RenderableType] = [_head(stories, status, title)]
    if hidden:
        kinds = ", ".join(f"{count} {name}" for name, count in Counter(story.name for story in hidden).most_common())
        parts += [
            Text(""),
            Text(f"earlier: {plural(len(hidden), 'fault')} ({kinds}); --limit 0 shows all", style="dim"),
        ]
    for number, story in enumerate(shown, len(hidden) + 1):
        parts += [Text(""), _title(number, story), _facts(story)]
    return Group(*parts)


def _head(stories: Sequence[FaultStory], status: JobStatus, title: str) -> RenderableType:
    from rich.text import Text

    facts = _grid()
    state = (status.state, state_style(status.state))
    outcome = next((each for each in JobOutcome if each == status.state), None)
    ended = f"  (exit code {outcome.exit_code})" if outcome is not None and outcome.is_failure else ""
    facts.add_row("job", title)
    facts.add_row("state", Text.assemble(state, ended, f"  {first_line(status.reason)}" if status.reason else ""))
    facts.add_row("faults", _number_and_cost(stories) if stories else _none(outcome))
    for node, slow in status.slow.items():
        facts.add_row("slow", Text.assemble((node, "yellow"), f"  {slow.text()}, since {clock_of(slow.since_s)}"))
    for node, reason in status.out.items():
        facts.add_row("out", Text.assemble((node, "red"), f"  {reason}"))
    return facts


def _number_and_cost(stories: Sequence[FaultStory]) -> str:
    cost_s = sum(story.cost_s or 0.0 for story in stories)
    again = sum(story.steps_again or 0 for story in stories)
    is_open = any(story.cost_s is None for story in stories)
    if is_open and len(stories) == 1:
        return "1, which is not over yet"
    so_far = ", the last one not over yet" if is_open else ""
    return f"{len(stories)}, which cost {_seconds(cost_s)} and {plural(again, 'step')} done again{so_far}"


def _none(outcome: JobOutcome | None) -> str:
    if outcome is None:
        return "none so far"
    return "none: the reason above ended the job" if outcome.is_failure else "none"


def _title(number: int, story: FaultStory) -> Text:
    from rich.text import Text

    rank = f"rank {story.rank}" if story.rank is not None else ""
    where = " on ".join(filter(None, (rank, story.node or "")))
    attempt = f"attempt {story.attempt}" if story.attempt is not None else "before an attempt"
    parts = ", ".join(filter(None, (where, attempt, f"step {story.step}" if story.step else "")))
    return Text.assemble(
        (f"{number}  ", "bold"), (clock({"time": story.time_s}), "dim"), "  ", (story.name, "bold red"),
        f" ({story.domain})  " if story.domain != Domain.UNKNOWN else "  ", parts,
    )  # fmt: skip


def _facts(story: FaultStory) -> RenderableType:
    from rich.text import Text

    facts = _grid()
    if story.fault_class in tuple(FaultClass) and story.name == story.fault_class:
        facts.add_row("what", MEANINGS[FaultClass(story.fault_class)])
    facts.add_row("proof" if story.proof else "reason", Text(story.proof or story.reason or "not recorded"))
    if story.alike:
        facts.add_row("also", f"{plural(story.alike, 'other rank')} failed in the same way")
    if story.consequences:
        facts.add_row("also", f"{plural(story.consequences, 'rank')} failed as a consequence")
    for words in story.further:
        facts.add_row("also", Text(words))
    facts.add_row("then", Text(story.done))
    facts.add_row("cost", _cost(story))
    if story.advice:
        facts.add_row("do", Text(story.advice, style="bold"))
    return facts


def _cost(story: FaultStory) -> str:
    time = f"{_seconds(story.cost_s)}" if story.cost_s is not None else "not over yet"
    again = story.steps_again
    return time if again is None else f"{time}, {plural(again, 'step')} done again"


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 120 else duration(seconds)


def _grid() -> Table:
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", justify="right", min_width=6)
    grid.add_column(overflow="fold")
    return grid
