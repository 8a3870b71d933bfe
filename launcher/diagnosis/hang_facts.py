"""What is known of each rank when the workers hang. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

_DISTRIBUTED = re.compile(r"/torch/distributed/")
_WAITING = ("_engine_run_backward", "synchronize")  # DDP waits in backward, a device for its kernels
_TEARDOWN = ("destroy_process_group", "_shutdown", "_run_exitfuncs", "_python_exit")
_LOADER = re.compile(r"/torch/utils/data/")
_OWN_HOOKS = "/launcher/runner/step_hooks.py:"  # they stand between torch and what it waits in
# Kernel functions in which a thread waits: for a lock; for a file system (FUSE, NFS, Lustre, a page, a block device).
_FUTEX = "futex"
_STORAGE = re.compile(r"fuse|request_wait_answer|^nfs|^rpc_|ptlrpc|^ll_|^osc_|folio_wait|wait_on_page|io_schedule|jbd2")
_STOPPED = ("T", "t")


class RankPlace(StrEnum):
    """Where a rank stands. The value is the sentence's words."""

    GONE = "has ended before the others"
    STOPPED = "stopped by a signal (state T)"
    DISK = "waits for a file system or device"
    SILENT = "does not answer"
    GIL = "holds the GIL in C code: no other Python thread of it runs"
    TEARDOWN = "is in teardown"
    COLLECTIVE = "waits in a collective"
    LOADER = "waits for its data loader"
    LOCK = "waits for a lock or another thread"
    USER_CODE = "is in its own code"


@dataclass(frozen=True, kw_only=True)
class Entered:
    """A collective that a rank has entered.

    Attributes:
        group: name of the process group. Groups of one name with other ranks are other groups.
        desc: its description, if the script gave one.
        ranks: the ranks in it, as "0-3,7"; "" if unknown.
        seq: number of the collective in its group.
        op: for example "all_reduce".
        what: its shapes and dtype.
        is_over: whether it is known to be complete; gloo does not tell.
    """

    group: str
    desc: str
    ranks: str
    seq: int
    op: str
    what: str
    is_over: bool = False

    def __str__(self) -> str:
        named = f" ({self.desc})" if self.desc and self.desc != "undefined" else ""
        return f"{self.op} {self.seq} of process group {self.group}{named}"


@dataclass(frozen=True, kw_only=True)
class RankFacts:
    """One rank at the time of the hang.

    Attributes:
        rank: the rank.
        node: its node.
        state: the kernel's state letter: R, S, D, T (stopped); "" if the process is gone.
        boundary: number of step boundaries passed in this attempt; None if it reports none.
        frames: its main thread's frames as "function (file:line)", innermost first; empty if it did not answer.
        wait: the kernel function in which its main thread waits; "" if unknown.
        runs_threads: whether a second Python thread of it answered; None if it has no such thread.
        entered: the newest collectives of each of its process groups, oldest first.
        is_unusual: whether it entered the last of them after another one than at the times before.
        pid: its pid on its node; 0 if it is not known.
    """

    rank: int
    node: str
    state: str
    boundary: int | None
    frames: tuple[str, ...]
    wait: str = ""
    runs_threads: bool | None = None
    entered: tuple[Entered, ...] = ()
    is_unusual: bool = False
    pid: int = 0

    @classmethod
    def from_report(cls, node: str, report: Mapping[str, Any]) -> RankFacts:
        """Parses an item of `ranks` in a runner's message "stacks"."""
        return cls(
            rank=report["rank"],
            node=node,
            state=report["state"],
            boundary=report["boundary"],
            frames=tuple(frame for frame in report["frames"] if _OWN_HOOKS not in frame),
            wait=report["wait"],
            runs_threads=report["runs_threads"],
            entered=tuple(Entered(**entered) for entered in report["entered"]),
            is_unusual=report["is_unusual"],
            pid=report["pid"],
        )

    @property
    def runs(self) -> bool:
        return self.state not in ("", "Z", "X")

    @property
    def last(self) -> Entered | None:
        """The collective that it entered last."""
        return self.entered[-1] if self.entered else None

    @property
    def place(self) -> RankPlace:
        if not self.runs:
            return RankPlace.GONE
        if self.state in _STOPPED:
            return RankPlace.STOPPED
        if (self.state == "D" and not self.frames) or _STORAGE.search(self.wait):
            return RankPlace.DISK
        if not self.frames:
            return RankPlace.SILENT
        if self.runs_threads is False:
            return RankPlace.GIL
        if any(frame.startswith(_TEARDOWN) for frame in self.frames):
            return RankPlace.TEARDOWN
        if self.waits_for_others:
            return RankPlace.COLLECTIVE
        if any(_LOADER.search(frame) for frame in self.frames):
            return RankPlace.LOADER
        return RankPlace.LOCK if _FUTEX in self.wait else RankPlace.USER_CODE

    @property
    def waits_for_others(self) -> bool:
        """Whether it is inside a collective, according to its Python frames."""
        for frame in self.frames:
            if _DISTRIBUTED.search(frame) or frame.startswith(_WAITING):
                return True
            if "/torch/" not in frame:
                break
        return False

    @property
    def where(self) -> str:
        """The innermost frame of the script: outside torch, Python's library and installed packages."""
        outside = [frame for frame in self.frames if "/torch/" not in frame]
        own = (frame for frame in outside if "/site-packages/" not in frame and "/lib/python" not in frame)
        return next(own, (outside or list(self.frames) or [""])[0])


def is_unusual(signatures: Sequence[str]) -> bool:
    """Whether the last of a rank's collectives follows another one than it did before.

    Args:
        signatures: group, operation and shapes of each, oldest first.
    """
    if len(signatures) < 3:
        return False
    *earlier, before, last = signatures
    after = {following for each, following in zip(earlier, signatures[1:], strict=False) if each == before}
    return bool(after) and last not in after


def ranks_of(text: str) -> tuple[int, ...]:
    """The ranks of "0-3,7"."""
    found: list[int] = []
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    return tuple(found)


def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks as "0-3,7"."""
    spans: list[tuple[int, int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], rank)
        else:
            spans.append((rank, rank))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
