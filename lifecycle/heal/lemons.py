"""Lemons: nodes that fail again and again, found from the actions of healing and from kernel messages."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lifecycle.heal.history import FAILED, LEMON, REBOOT, REPLACE, HealEvent

_DRAINED = "drained"  # the cause in a job's event: it has left the node because somebody wanted that


@dataclass(frozen=True, kw_only=True)
class Offender:
    """A node and its failures in a period.

    Attributes:
        node: its name.
        reboots, replacements: number of them.
        failed: how often it failed its check after one of them.
        incidents: number of kernel messages about its GPUs and EFA during jobs.
        last_s: time of the last failure, Unix seconds.
        last: the last failure.
        is_lemon: whether healing has given it up.
    """

    node: str
    reboots: int
    replacements: int
    failed: int
    incidents: int
    last_s: float
    last: str
    is_lemon: bool

    @property
    def troubles(self) -> int:
        return self.reboots + self.replacements + self.failed + self.incidents


@dataclass(frozen=True, kw_only=True)
class Incident:
    """A line of incidents.jsonl that is used here."""

    time_s: float
    node: str
    what: str


def offenders(events: Iterable[HealEvent], incidents: Iterable[Incident], since_s: float) -> list[Offender]:
    """Nodes with failures since a time: lemons first, then those with most failures."""
    lately: dict[str, list[HealEvent]] = {}
    for event in events:
        if event.time_s >= since_s:
            lately.setdefault(event.node, []).append(event)
    said: dict[str, list[Incident]] = {}
    for incident in incidents:
        if incident.time_s >= since_s:
            said.setdefault(incident.node, []).append(incident)
    found = [_of(node, lately.get(node, []), said.get(node, [])) for node in sorted({*lately, *said})]
    return sorted((one for one in found if one.troubles), key=lambda one: (not one.is_lemon, -one.troubles, one.node))


def read_incidents(path: Path) -> list[Incident]:
    """Reads failures of nodes from an incidents.jsonl, also of several nodes, or from a job's events.jsonl.

    Of a job's events, only those count that put a node out. Faults of a user's program do not, and neither do a Python
    that does not load there and a drain, whose cause has a line of its own. A torn line is skipped.
    """
    found = []
    for line in path.read_text(errors="replace").splitlines():
        try:
            row = json.loads(line)
            if "event" in row:
                if row["event"] == "node_out" and not row.get("environment") and row.get("cause") != _DRAINED:
                    why = f"out of a job: {row['reason']}"
                    found.append(Incident(time_s=float(row["time"]), node=str(row["node"]), what=why))
                elif row["event"] == "node_back":  # it was only unreachable for a while
                    last = max(index for index, each in enumerate(found) if each.node == row["node"])
                    del found[last]
                continue
            found.append(Incident(time_s=float(row["time_s"]), node=str(row["node"]), what=str(row["what"])))
        except (ValueError, KeyError, TypeError):
            continue
    return found


def _of(node: str, events: Sequence[HealEvent], incidents: Sequence[Incident]) -> Offender:
    counts = Counter(event.what for event in events)
    told = [(event.time_s, f"{event.what}: {event.why}") for event in events]
    last_s, last = max([*told, *((incident.time_s, incident.what) for incident in incidents)])
    return Offender(
        node=node,
        reboots=counts[REBOOT],
        replacements=counts[REPLACE],
        failed=counts[FAILED],
        incidents=len(incidents),
        last_s=last_s,
        last=last,
        is_lemon=bool(events) and events[-1].what == LEMON,
    )
