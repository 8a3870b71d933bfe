"""Which processes NCCL's RAS finds behind or missing. Pure.

The answer is text for people: its form differs between releases of NCCL, and it lists only the members of groups that
are small. A process is behind if it has launched fewer operations of a communicator than others. In a hang the counts
stand still, so that is no matter of the moment at which RAS has looked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_SECTION = re.compile(r"^(?:(#\d+-\d+) \(\S+\) )?([A-Z]{4,})\s*$")
_MISSING = {"INCOMPLETE": "RAS gets no data from it", "DEAD": "RAS does not reach it any more"}
_OPERATION = re.compile(r"different (\w+) operation counts")
_GROUP = re.compile(r"^\s*\d+ ranks have (?:launched up to operation (\d+)|not launched any)")
_ALONE = re.compile(r"^\s*Rank \d+ has (?:launched up to operation (\d+)|not launched any)")
_PROCESS = re.compile(r"\b[Pp]rocess (\d+) on node (\S+)")


@dataclass(frozen=True, kw_only=True)
class RasProcess:
    """A process that stands out.

    Attributes:
        pid: its pid on its node.
        node: its node's name or address, as NCCL knows it.
        says: how it stands out, in words.
    """

    pid: int
    node: str
    says: str

    @classmethod
    def from_report(cls, report: Mapping[str, Any]) -> RasProcess:
        """Parses an item of `ras` in a runner's message "stacks"."""
        return cls(pid=report["pid"], node=report["node"], says=report["says"])


def processes(text: str) -> list[RasProcess]:
    """The processes that stand out in RAS's answer: first those that are missing, then those that are behind."""
    missing: dict[tuple[int, str], str] = {}
    behind: dict[tuple[int, str], str] = {}
    for communicator, kind, lines in _sections(text):
        if kind in _MISSING:
            missing |= {process: _MISSING[kind] for line in lines for process in _named(line)}
        elif kind == "MISMATCH" and communicator:
            behind = _behind(communicator, lines) | behind
    found = missing | {process: says for process, says in behind.items() if process not in missing}
    return [RasProcess(pid=pid, node=node, says=says) for (pid, node), says in found.items()]


def _sections(text: str) -> Iterator[tuple[str, str, list[str]]]:
    """The communicator ("" for the job), the kind and the lines of each section."""
    communicator, kind, lines = "", "", list[str]()
    for line in text.splitlines():
        if (head := _SECTION.match(line)) is not None:
            yield communicator, kind, lines
            communicator, kind, lines = head[1] or "", head[2], []
        else:
            lines.append(line)
    yield communicator, kind, lines


def _behind(communicator: str, lines: list[str]) -> dict[tuple[int, str], str]:
    """The members that have launched fewer operations than others, as far as they are listed."""
    operation, count, most = "collective", 0, 0
    counts: dict[tuple[int, str], int] = {}
    for line in lines:
        if (named := _OPERATION.search(line)) is not None:
            operation = named[1]
        elif (found := _GROUP.match(line) or _ALONE.match(line)) is not None:
            count = int(found[1] or 0)
            most = max(most, count)
        counts |= dict.fromkeys(_named(line), count)
    what = f"operations ({operation}) of communicator {communicator}, others {most}"
    return {process: f"it has launched {count} {what}" for process, count in counts.items() if count < most}


def _named(line: str) -> list[tuple[int, str]]:
    return [(int(pid), node) for pid, node in _PROCESS.findall(line)]
