"""The facts of a job as tables, for the page and for CSV files."""

from __future__ import annotations

import contextlib
import csv
import io
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ckpt import CheckpointConfig, CheckpointError, make_plan
from launcher.history.view import duration
from launcher.report.facts import RunFacts
from launcher.report.settings import shown_settings
from launcher.report.timeline import CLASSES, PRODUCTIVE

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would run a cell that begins so


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table.

    Attributes:
        name: its name in CSV, with its unit.
        title: its heading on the page.
        shown: how the page shows a value.
        is_number: whether the page aligns it to the right.
    """

    name: str
    title: str
    shown: Callable[[Any], str]
    is_number: bool = False


@dataclass(frozen=True, kw_only=True)
class FactTable:
    """A table.

    Attributes:
        name: the name of its CSV file.
        title: its heading.
        note: what a reader must know about it; "" for nothing.
        rows: the values, in the order of the columns. None is a value that is not known.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]
    note: str = ""

    def csv(self) -> str:
        """The table as CSV, with its columns' names as the first line."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([column.name for column in self.columns])
        writer.writerows([_cell(value) for value in row] for row in self.rows)
        return out.getvalue()

    def newest(self, count: int) -> FactTable:
        """The table with its last rows only, and a note if that cuts it."""
        if len(self.rows) <= count:
            return self
        note = f"The last {count} of {len(self.rows)} rows; `holdfast report --csv DIR` writes all."
        return FactTable(
            name=self.name, title=self.title, columns=self.columns, rows=self.rows[-count:],
            note=" ".join(filter(None, (self.note, note))),
        )  # fmt: skip


def tables_of(facts: RunFacts, spec: Mapping[str, Any]) -> list[FactTable]:
    """The tables of a report. One without rows is left out.

    Args:
        facts: the job's facts.
        spec: the content of job.json; empty if it cannot be read.
    """
    made = (*(table(facts) for table in _OF_EVENTS), _memory(facts, spec), _settings(spec), _versions(facts))
    return [table for table in made if table.rows]


def clock(time_s: float | None) -> str:
    """The local date and time; a dash for None."""
    return "–" if time_s is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_s))


def seconds(value: float | None) -> str:
    """Seconds with their unit; from an hour on as hours and minutes."""
    if value is None:
        return "–"
    return duration(value) if value >= 3600 else f"{value:.1f} s" if value >= 10 else f"{value:.2f} s"


def size(value: float | None) -> str:
    """Bytes with a unit."""
    if value is None:
        return "–"
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} PiB"


def speed(value: float | None) -> str:
    """Bytes per second with a unit."""
    return "–" if value is None else f"{size(value)}/s"


def share(value: float | None) -> str:
    """A share in percent."""
    return "–" if value is None else f"{value:.1%}"


def plain(value: Any) -> str:
    """Text or a number as it is; a dash for None."""
    return "–" if value is None or value == "" else str(value)


def _time(facts: RunFacts) -> FactTable:
    whole_s = sum(facts.time_s.values())
    return _table(
        "time", "Where the time went",
        [_text("class"), _text("meaning"), _text("badput_type", "ml-goodput's type"), _s("seconds", "time"),
         Column(name="share", title="share", shown=share, is_number=True)],
        (
            (name, CLASSES[name].meaning, CLASSES[name].badput_type or ("(goodput)" if name == PRODUCTIVE else None),
             seconds, seconds / whole_s)
            for name, seconds in facts.time_s.items()
        ),
    )  # fmt: skip


def _attempts(facts: RunFacts) -> FactTable:
    return _table(
        "attempts", "Attempts",
        [_number("attempt"), _text("rung"), _number("nodes"), _when("start_s", "began"),
         _number("restored_step", "restored step"),
         _text("restored_from", "from"), _s("restore_s", "restore"), _s("workers_s", "workers started"),
         _s("first_step_s", "first step"), _number("last_step", "last step"), _s("step_s", "a step"),
         _when("end_s", "ended"), _text("outcome")],
        (
            (a.number, a.rung, a.nodes, a.start_s, a.restored_step, a.restored_from, a.restore_s, a.workers_s,
             a.first_step_s, a.last_step, a.step_s, a.end_s, a.outcome)
            for a in facts.attempts
        ),
    )  # fmt: skip


def _why(facts: RunFacts) -> FactTable:
    return _table(
        "why", "Why it failed",
        [_when("time_s", "noticed"), _number("attempt"), _text("fault_class", "class"), _text("domain", "whose"),
         _text("node"), _number("rank"), _text("proof"), _text("done", "what Holdfast did"), _s("cost_s", "cost"),
         _number("steps_again", "steps done again"), _text("advice", "what to do")],
        (
            (w.time_s, w.attempt, w.fault_class, w.domain, w.node, w.rank, w.proof or w.reason, w.done, w.cost_s,
             w.steps_again, w.advice)
            for w in facts.why
        ),
        note="The cost counts from the fault to the next step. `holdfast why` shows the same.",
    )  # fmt: skip


def _faults(facts: RunFacts) -> FactTable:
    return _table(
        "faults", "Faults",
        [_when("time_s", "noticed"), _number("attempt"), _text("kind"), _text("node"), _number("rank"),
         _number("step"), _s("detect_s", "noticed after"), _text("reason")],
        ((f.time_s, f.attempt, f.kind, f.node, f.rank, f.step, f.detect_s, f.reason) for f in facts.faults),
    )  # fmt: skip


def _recoveries(facts: RunFacts) -> FactTable:
    return _table(
        "recoveries", "Recoveries",
        [_text("kind"), _text("node"), _text("rung"), _number("step_lost", "step lost"),
         _number("step_resumed", "resumed"), _text("restored_from", "from"), _s("detect_s", "noticed"),
         _s("workers_s", "workers started"), _s("next_step_s", "next step")],
        (
            (r.kind, r.node, r.rung, r.step_lost, r.step_resumed, r.restored_from, r.detect_s, r.workers_s,
             r.next_step_s)
            for r in facts.recoveries
        ),
        note="Times count from the fault.",
    )  # fmt: skip


def _tiers(facts: RunFacts) -> FactTable:
    return _table(
        "tiers", "Checkpoints by tier",
        [_text("tier"), _number("step", "newest step"), _when("time_s", "complete"), _number("commits", "steps"),
         Column(name="bytes", title="in all", shown=size, is_number=True),
         Column(name="bytes_per_s", title="speed", shown=speed, is_number=True), _s("slowest_s", "slowest"),
         _s("stall_s", "held training up"),
         _number("failed", "failed saves")],
        (
            (t.tier, t.step, t.time_s, t.commits, t.bytes, t.bytes_per_s, t.slowest_s, t.stall_s or None, t.failed)
            for t in facts.tiers
        ),
        note="Saves go on while training does; the speed is from the save to the commit.",
    )  # fmt: skip


def _nodes(facts: RunFacts) -> FactTable:
    boosters = {booster.allocation: booster.name for booster in facts.boosters}
    return _table(
        "nodes", "Nodes",
        [_text("node"), _text("state"), _number("attempts"), _number("faults"), _number("rebuilt", "ranks rebuilt"),
         _text("allocation", "booster"), _text("reason")],
        (
            (n.node, n.state, n.attempts, n.faults, n.rebuilt, boosters.get(n.allocation or ""), n.reason)
            for n in sorted(facts.nodes, key=lambda node: (node.state == "out", node.faults, node.node))
        ),
    )  # fmt: skip


def _resizes(facts: RunFacts) -> FactTable:
    return _table(
        "resizes", "Resizes",
        [_number("attempt"), _text("rung"), _number("size", "nodes before"), _number("to", "after"),
         _when("stopped_s", "training stopped"), _s("seconds", "without training")],
        ((r.attempt, r.rung, r.size, r.to, r.stopped_s, r.seconds) for r in facts.resizes),
    )  # fmt: skip


def _boosters(facts: RunFacts) -> FactTable:
    return _table(
        "boosters", "Boosters",
        [_text("job_id", "Slurm job"), _number("nodes"), _when("asked_s", "requested"),
         _when("ready_s", "first node"),
         _when("ended_s", "ended"), _text("reason")],
        ((b.name, b.nodes, b.asked_s, b.ready_s, b.ended_s, b.reason) for b in facts.boosters),
    )  # fmt: skip


def _problems(facts: RunFacts) -> FactTable:
    return _table(
        "problems", "Problems",
        [_when("time_s", "newest"), _number("count"), _text("what"), _text("node"), _text("detail")],
        ((p.time_s, p.count, p.what, p.node, p.detail) for p in reversed(facts.problems)),
    )  # fmt: skip


def _memory(facts: RunFacts, spec: Mapping[str, Any]) -> FactTable:
    """What the checkpoints of the newest attempt take of a node's memory, by its settings and the size of its steps."""
    saved = next((tier for tier in facts.tiers if tier.tier == "memory" and tier.commits), None)
    rows = []
    if saved is not None and facts.attempts:
        nodes, ranks = facts.attempts[-1].nodes, spec.get("workers_per_node")
        state_bytes = saved.bytes // saved.commits
        with contextlib.suppress(CheckpointError):  # settings of another release
            config = CheckpointConfig.from_json(spec.get("checkpoint"))
            if isinstance(ranks, int) and ranks > 0:
                shard_bytes = -(-state_bytes // (nodes * ranks))
                plan = make_plan(config, nodes=nodes, ranks_per_node=ranks, shard_bytes=shard_bytes)
                memory = plan.memory
                rows.append((nodes, state_bytes, plan.scheme, memory.slots, memory.own_bytes, memory.redundancy_bytes,
                             memory.total_bytes, plan.losses.any_nodes))  # fmt: skip
    sizes = (("own_bytes", "own"), ("redundancy_bytes", "of others"), ("total_bytes", "in all"))
    return _table(
        "memory", "Memory of a node",
        [_number("nodes"), Column(name="step_bytes", title="step", shown=size, is_number=True),
         _text("scheme", "redundancy"), _number("slots", "slots"),
         *(Column(name=name, title=title, shown=size, is_number=True) for name, title in sizes),
         _number("survives", "survives")],
        rows, note="Of the fullest, once each slot is used. Of others: copies or parity. Survives: lost nodes.",
    )  # fmt: skip


def _settings(spec: Mapping[str, Any]) -> FactTable:
    return _table(
        "settings", "Settings", [_text("key"), _text("value")], shown_settings(spec),
        note="The values of variables, webhooks and options that sound like secrets are hidden.",
    )  # fmt: skip


def _versions(facts: RunFacts) -> FactTable:
    return _table(
        "versions", "Versions", [_text("part"), _text("version")],
        ((part, number) for part, _, number in (text.rpartition(" ") for text in facts.versions)),
        note="Of the supervisor's environment at the job's newest start.",
    )  # fmt: skip


def _table(name: str, title: str, columns: list[Column], rows: Iterable[tuple[Any, ...]], note: str = "") -> FactTable:
    return FactTable(name=name, title=title, columns=tuple(columns), rows=tuple(rows), note=note)


def _text(name: str, title: str = "") -> Column:
    return Column(name=name, title=title or name, shown=plain)


def _number(name: str, title: str = "") -> Column:
    return Column(name=name, title=title or name, shown=plain, is_number=True)


def _s(name: str, title: str) -> Column:
    return Column(name=name, title=title, shown=seconds, is_number=True)


def _when(name: str, title: str) -> Column:
    return Column(name=name, title=title, shown=clock)


def _cell(value: Any) -> Any:
    """A value of a CSV cell. Text that a spreadsheet would take for a formula begins with an apostrophe."""
    if isinstance(value, str):
        return f"'{value}" if value.startswith(_FORMULA) else value
    return round(value, 6) if isinstance(value, float) else value


_OF_EVENTS = (_time, _why, _attempts, _faults, _recoveries, _tiers, _nodes, _resizes, _boosters, _problems)
