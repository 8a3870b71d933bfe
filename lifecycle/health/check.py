"""The contract of a health check.

A check is a function from a `CheckedNode` to a `Finding`, made a `Check` by the decorator:

    @check("zombies", Level.QUICK)
    def zombies(node: Node) -> Finding:
        \"\"\"Few processes that ended and were never waited for.\"\"\"

It reads the node only through `CheckedNode`, so a test passes recorded output and a directory. It returns `ok`,
`warning` or `critical`. It raises `NotHere` for a part that the node does not have, `CannotObserve` when it could not
look, and `Unreadable` for a part that the node has and that cannot be read. It may hang: the runner ends it after its
`limit_s`. Checks of one module run one after another in one process and share the results of `CheckedNode.once`;
modules run side by side.
"""

from __future__ import annotations

import dataclasses
import enum
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

from lifecycle.health.finding import Finding, Status, critical
from lifecycle.health.settings import Settings
from lifecycle.instance import Expected
from slurm.command import CommandError, CommandRunner, Result, run

log = logging.getLogger(__name__)
Fact = TypeVar("Fact")

VERDICT_FILE = Path("/var/lib/holdfast/verdict.json")
"""The last verdict on this node; see verdict.py."""


class Level(enum.IntEnum):
    """How thorough a run is. Each level runs its own checks and those of lower levels, within `budget_s` seconds."""

    PROLOG = 0
    QUICK = 1
    DEEP = 2

    @property
    def word(self) -> str:
        return self.name.lower()

    @property
    def budget_s(self) -> float:
        """Seconds for all checks. Prolog: 2 s less the start of Python; quick: Slurm's 60 s less that start."""
        return {Level.PROLOG: 1.2, Level.QUICK: 55.0, Level.DEEP: 2400.0}[self]


class NotHere(Exception):
    """The node does not have the part that the check examines; the check is skipped."""


class CannotObserve(Exception):
    """The check could not look; its result is UNKNOWN."""


class Unreadable(Exception):
    """A part that the node has does not answer, or answers with an error; the check's result is CRITICAL.

    Attributes:
        advice: what to do about it.
    """

    def __init__(self, measured: str, advice: str) -> None:
        self.advice = advice
        super().__init__(measured)


def _import_nvml() -> Any:
    try:
        import pynvml
    except ImportError:
        raise CannotObserve("nvidia-ml-py is not installed; pip install nvidia-ml-py") from None
    return pynvml


@dataclass(kw_only=True)
class CheckedNode:
    """The node, as checks may read it.

    Attributes:
        run: runs programs; prefer `command`, which keeps the check's deadline.
        nvml: the module of NVIDIA's management library.
        root: the file system's root; another directory in tests.
        settings: the site's settings.
        expected: the hardware of this machine type; None if unknown.
        now_s: returns the wall-clock time, Unix seconds.
        wait: sleeps for seconds.
        environment: environment of this process, with Slurm's variables.
        verdict: the file of the verdict of earlier runs.
        deadline_s: deadline of the running check, on the monotonic clock.
    """

    run: CommandRunner = run
    nvml: Callable[[], Any] = _import_nvml
    root: Path = Path("/")
    settings: Settings = field(default_factory=Settings)
    expected: Expected | None = None
    now_s: Callable[[], float] = time.time
    wait: Callable[[float], None] = time.sleep
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    verdict: Path = VERDICT_FILE
    deadline_s: float = float("inf")
    _known: dict[Callable[..., Any], Any] = field(default_factory=dict)

    def path(self, name: str) -> Path:
        """The path of a node's file below `root`."""
        return self.root / name.lstrip("/")

    def read(self, name: str) -> str:
        """The text of a file of the node.

        Raises:
            OSError: it does not exist or cannot be read.
        """
        return self.path(name).read_text(errors="replace")

    def command(self, *argv: str, timeout_s: float = 30.0, check: bool = True, **options: Any) -> Result:
        """Runs a program, never beyond the check's deadline.

        Raises:
            CommandError: as `slurm.command.run`.
        """
        left_s = max(0.1, self.deadline_s - time.monotonic() - 0.5)
        return self.run(argv, timeout_s=min(timeout_s, left_s), check=check, **options)

    def tool(self, *argv: str, timeout_s: float = 30.0, check: bool = True, **options: Any) -> Result:
        """Runs a program that not every node has.

        Raises:
            NotHere: it is not installed.
            CannotObserve: it failed or did not answer.
        """
        try:
            return self.command(*argv, timeout_s=timeout_s, check=check, **options)
        except CommandError as error:
            if error.result.returncode is None and "could not be started" in error.reason:
                raise NotHere(f"{argv[0]} is not installed") from None
            raise CannotObserve(str(error)) from None

    def once(self, look: Callable[[CheckedNode], Fact]) -> Fact:
        """The result of `look` on this node. It is called once for all checks of a module; an exception is kept too."""
        if look not in self._known:
            try:
                self._known[look] = (look(self), None)
            except Exception as error:
                self._known[look] = (None, error)
        fact, failure = self._known[look]
        if failure is not None:
            raise failure
        return cast(Fact, fact)


class Judge(Protocol):
    """The signature of a check's function."""

    __name__: str
    __module__: str
    __doc__: str | None

    def __call__(self, node: CheckedNode, /) -> Finding: ...


@dataclass(frozen=True, kw_only=True)
class Check:
    """One health check.

    Attributes:
        name: unique, as `--only` takes it.
        judge: the check's function.
        levels: the levels that run it.
        limit_s: time limit in seconds; after it the result is UNKNOWN.
        alone: whether it measures speed and therefore runs alone.
        where: a quick test whether a node has the examined part, for checks that may take minutes.
    """

    name: str
    judge: Judge
    levels: Sequence[Level]
    limit_s: float
    alone: bool
    where: Callable[[CheckedNode], object]

    @property
    def promise(self) -> str:
        """What holds when the check is ok: the first line of the function's docstring."""
        return (self.judge.__doc__ or "").strip().splitlines()[0]

    @property
    def family(self) -> str:
        """Checks of one family run in one process."""
        return self.name if self.alone else self.judge.__module__

    def run(self, node: CheckedNode) -> Finding:
        """Runs the check. Raises nothing: an exception in a check becomes UNKNOWN."""
        start_s = time.monotonic()
        node.deadline_s = start_s + self.limit_s
        try:
            finding = self.judge(node)
        except NotHere as error:
            finding = Finding(status=Status.SKIPPED, measured=str(error))
        except Unreadable as error:
            finding = critical(_one_line(error), self.promise, error.advice)
        except (CannotObserve, CommandError, OSError) as error:
            finding = self.unknown(_one_line(error))
        except Exception as error:
            log.exception("check %s failed", self.name)
            finding = self.unknown(f"the check itself failed: {type(error).__name__}: {_one_line(error)}")
        return dataclasses.replace(finding, check=self.name, seconds=time.monotonic() - start_s)

    def unknown(self, measured: str, seconds: float = 0.0) -> Finding:
        """The finding if the check could not look."""
        return Finding(
            check=self.name, status=Status.UNKNOWN, measured=measured, expected=self.promise, seconds=seconds
        )


def check(
    name: str,
    level: Level,
    *,
    limit_s: float = 10.0,
    alone: bool = False,
    until: Level = Level.DEEP,
    where: Callable[[CheckedNode], object] = lambda node: True,
) -> Callable[[Judge], Check]:
    """Makes a function a check.

    Args:
        name: its name.
        level: the cheapest level that runs it.
        limit_s: seconds it may take; at level prolog at most one.
        alone: whether it measures speed and must not be disturbed.
        until: the most thorough level that runs it.
        where: whether a node has the part that it examines; on other nodes its limit does not count in a run's length.
    """
    levels = tuple(each for each in Level if level <= each <= until)
    return lambda judge: Check(name=name, judge=judge, levels=levels, limit_s=limit_s, alone=alone, where=where)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
