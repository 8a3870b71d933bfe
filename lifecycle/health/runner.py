"""Runs checks so that none of them can hang the run.

Every family of checks runs in a child process, side by side with the others. When a check exceeds its limit, its child
is killed, or abandoned if it cannot be killed (uninterruptible sleep on a dead mount). The rest of its family continues
in a new child. Checks that measure speed run last, one at a time.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from lifecycle.health.check import Check, CheckedNode
from lifecycle.health.finding import Finding, Status
from lifecycle.health.tree import kill_tree

_REAP_S = 0.2
_TELL_S = 0.5


def run_checks(
    checks: Sequence[Check], node: CheckedNode, budget_s: float, tell: Callable[[str], None] = lambda _: None
) -> list[Finding]:
    """Runs all checks and returns their findings in the same order.

    Args:
        checks: the checks.
        node: the node that they examine.
        budget_s: time limit for all of them, seconds; checks that have not run by then are UNKNOWN.
        tell: called now and then with what is done, for a user who waits.
    """
    end_s = time.monotonic() + budget_s
    findings: dict[str, Finding] = {}
    for round_ in _rounds(checks):
        before = len(findings)
        for done in (running := _Round(node, end_s, budget_s)).run(round_):
            tell(f"{before + done} of {len(checks)} checks")
        findings |= running.findings
    return [findings[check.name] for check in checks]


def longest_s(checks: Sequence[Check], node: CheckedNode, budget_s: float) -> float:
    """The longest time of `run_checks`, seconds: every check that applies to this node uses its whole limit."""
    here = _rounds([check for check in checks if check.where(node)])
    return min(
        budget_s,
        sum(max((sum(check.limit_s for check in family) for family in round_), default=0.0) for round_ in here),
    )


def _rounds(checks: Sequence[Check]) -> list[list[list[Check]]]:
    """The families that run side by side, then those that run alone, one at a time."""
    families: dict[str, list[Check]] = {}
    for check in checks:
        families.setdefault(check.family, []).append(check)
    together = [family for family in families.values() if not family[0].alone]
    alone = [[family] for family in families.values() if family[0].alone]
    return [together, *alone]


@dataclass(kw_only=True)
class _Child:
    """A process that runs the checks of one family. It writes a line for each check."""

    pid: int
    pipe: int
    waiting: list[Check]
    since_s: float
    text: bytearray = field(default_factory=bytearray)

    @property
    def deadline_s(self) -> float:
        return self.since_s + self.waiting[0].limit_s


class _Round:
    """Some families that run in parallel."""

    def __init__(self, node: CheckedNode, end_s: float, budget_s: float) -> None:
        self._node = node
        self._end_s = end_s
        self._budget_s = budget_s
        self._selector = selectors.DefaultSelector()
        self._children: dict[int, _Child] = {}
        self.findings: dict[str, Finding] = {}

    def run(self, families: Sequence[Sequence[Check]]) -> Iterator[int]:
        """Run the families. Yields the number of findings so far, at least twice a second."""
        try:
            for family in families:
                self._start(list(family))
            while self._children:
                yield len(self.findings)
                self._wait()
        finally:
            for child in list(self._children.values()):
                self._drop(child)
            self._selector.close()

    def _start(self, checks: list[Check]) -> None:
        now_s = time.monotonic()
        if now_s >= self._end_s:
            for check in checks:
                self._take(check.unknown(f"not run: the {self._budget_s:g} s of this level were used up"))
            return
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            _be_child(checks, self._node, writer)
        os.close(writer)
        os.set_blocking(reader, False)
        self._children[reader] = _Child(pid=pid, pipe=reader, waiting=checks, since_s=now_s)
        self._selector.register(reader, selectors.EVENT_READ)

    def _wait(self) -> None:
        told_s = time.monotonic() + _TELL_S
        next_s = min(self._end_s, told_s, *(child.deadline_s for child in self._children.values()))
        for key, _ in self._selector.select(max(0.0, next_s - time.monotonic())):
            self._hear(self._children[key.fd])
        now_s = time.monotonic()
        for child in list(self._children.values()):
            if now_s >= self._end_s:
                self._give_up(child, f"no answer when the {self._budget_s:g} s of this level were used up")
            elif now_s >= child.deadline_s:
                self._give_up(child, f"no answer within {child.waiting[0].limit_s:g} s")

    def _hear(self, child: _Child) -> None:
        data = os.read(child.pipe, 1 << 16)
        child.text += data
        while b"\n" in child.text:
            line, _, rest = child.text.partition(b"\n")
            child.text = rest
            facts = json.loads(line)
            self._take(Finding(**facts | {"status": Status(facts["status"])}))
            child.waiting.pop(0)
            child.since_s = time.monotonic()
        if not child.waiting:
            self._drop(child)
        elif not data:
            self._give_up(child, "the check's process ended without an answer")

    def _give_up(self, child: _Child, why: str) -> None:
        """Makes the running check UNKNOWN and starts a new process for the others of its family."""
        self._drop(child)
        check = child.waiting[0]
        self._take(check.unknown(why, time.monotonic() - child.since_s))
        if child.waiting[1:]:
            self._start(child.waiting[1:])

    def _take(self, finding: Finding) -> None:
        self.findings[finding.check] = finding

    def _drop(self, child: _Child) -> None:
        self._selector.unregister(child.pipe)
        os.close(child.pipe)
        del self._children[child.pipe]
        kill_tree(child.pid)
        _reap(child.pid)


def _be_child(checks: Sequence[Check], node: CheckedNode, writer: int) -> None:
    """Runs the checks, writes each finding to the pipe, and never returns."""
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):  # a child left behind must not hold the caller's pipes open
            os.dup2(null, descriptor)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for check in checks:
            finding = check.run(node)
            os.write(writer, json.dumps(vars(finding)).encode() + b"\n")
    finally:
        os._exit(0)


def _reap(pid: int) -> None:
    """Waits a moment for a killed child. A child in uninterruptible sleep is left to init."""
    deadline_s = time.monotonic() + _REAP_S
    while time.monotonic() < deadline_s:
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                time.sleep(0.002)
                continue
        return
