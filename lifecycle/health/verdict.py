"""The verdict: the last results of the checks on this node, in a file that root writes and Slurm's hooks read.

A run replaces the results of the checks that it ran. Other results stay until the next reboot. A failure is replaced
only by a later observation, never by a check that could not look.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.base.files import publish
from lifecycle.health.check import CheckedNode, Level
from lifecycle.health.finding import Finding, Status, overall

VERSION = 1
_MAX_BYTES = 1 << 20
_FAILED = (Status.WARNING.word, Status.CRITICAL.word)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The results of the checks.

    Attributes:
        node: the host's name.
        time_s: end of the last whole run, Unix seconds.
        boot_id: the kernel's random id of this boot.
        level: level of the last whole run; "prolog" if there was none.
        checks: one mapping a check: name, status, measured, expected, advice, seconds, time_s, level.
    """

    node: str
    time_s: float
    boot_id: str
    level: str
    checks: tuple[dict[str, Any], ...]

    @classmethod
    def of(cls, findings: Sequence[Finding], level: Level, node: CheckedNode) -> Verdict:
        """The verdict of one run."""
        now_s = round(node.now_s(), 3)
        rows = tuple({**finding.to_mapping(), "time_s": now_s, "level": level.word} for finding in findings)
        return cls(node=os.uname().nodename, time_s=now_s, boot_id=boot_id(node), level=level.word, checks=rows)

    @property
    def status(self) -> Status:
        return overall(Status[row["status"].upper()] for row in self.checks)

    def after(self, older: Verdict, whole: bool) -> Verdict:
        """This verdict, completed by results of an older one.

        Args:
            older: a verdict of the same boot.
            whole: whether this was a whole run; otherwise the older verdict's time and level are kept.
        """
        before = {row["name"]: row for row in older.checks}
        rows = []
        for row in self.checks:
            old = before.pop(row["name"], None)
            blind = row["status"] == Status.UNKNOWN.word
            rows.append(old if old is not None and blind and old["status"] in _FAILED else row)
        head = self if whole else older
        return dataclasses.replace(head, checks=(*rows, *before.values()))

    def to_mapping(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "node": self.node,
            "time_s": self.time_s,
            "boot_id": self.boot_id,
            "level": self.level,
            "status": self.status.word,
            "checks": list(self.checks),
        }

    def write(self, path: Path, whole: bool = True) -> None:
        """Writes the file, merged with its older content from this boot.

        Args:
            path: the file.
            whole: whether all checks of level quick or deep were run.

        Raises:
            OSError: it could not be written; the older file is unchanged.
        """
        verdict = self
        with contextlib.suppress(OSError, ValueError):  # there is no older file, or it cannot be trusted
            older = read_verdict(path)
            if (older.boot_id, older.node) == (self.boot_id, self.node):
                verdict = self.after(older, whole)
        publish(path, json.dumps(verdict.to_mapping(), indent=1).encode() + b"\n")


def read_verdict(path: Path) -> Verdict:
    """Reads the verdict of a file.

    Raises:
        OSError: it does not exist or cannot be read.
        ValueError: it is not a verdict that root or this user wrote.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid not in (0, os.geteuid()) or facts.st_mode & 0o022:
            raise ValueError(f"{path}: expected a file that only root can write")
        found = json.loads(file.read(_MAX_BYTES))
    if not isinstance(found, dict) or found.get("version") != VERSION:
        raise ValueError(f"{path}: expected a verdict of version {VERSION}")
    try:
        verdict = Verdict(
            node=str(found["node"]),
            time_s=float(found["time_s"]),
            boot_id=str(found["boot_id"]),
            level=str(found["level"]),
            checks=tuple(dict(row) for row in found["checks"]),
        )
        _ = verdict.status, [row["name"] for row in verdict.checks]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: no verdict: {error}") from None
    return verdict


def boot_id(node: CheckedNode) -> str:
    """The kernel's random id of this boot; empty if it cannot be read."""
    try:
        return node.read("/proc/sys/kernel/random/boot_id").strip()
    except OSError:
        return ""
