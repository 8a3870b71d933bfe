"""Whether the workers hang, and which rank is at fault. Pure: notes and times in, a verdict out; no clock of its own.

A job whose script tells its steps (`ckpt.due`, `ckpt.stop_requested`) hangs when the rank that is furthest behind makes
no step for the timeout: `restart.hang_timeout_s`, or where that is not set

    max(300 s, 20 x the longest time between two steps seen) x 4 for each hang since the last new step

The last factor is for work that takes long without a step (an evaluation, say): it is taken for a hang once or twice,
and then left to finish. Until the first step of an attempt at least START_S are allowed. A rank that has closed
its Checkpointer, or ended, is not waited for.

A script that tells no steps can only be judged by its silence: no output and no CPU time of any worker. That is weaker
(a rank may spin while it waits; a GPU may work while all is silent), so it counts only where the timeout is set.

Once a rank has ended, the others are to end as well, whatever the script: they hang when they are silent and make no
step for ENDED_S (the timeout if that is longer), x 4 for each hang as above.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

START_S = 1800.0  # until the first step: compilation, data, a restore from far away
ENDED_S = 900.0  # an upload by another program, say, shows no activity of the rank's own
FLOOR_S = 300.0
STEPS_FACTOR = 20.0
REPEAT_FACTOR = 4.0
CHECK_S = 0.25

_LAG_S = 2.0  # a supervisor that was stopped for longer has notices to read before it judges
_SHOWN_RANKS = 4
_COLLECTIVE_FILE = re.compile(r"/torch/distributed/")
_COLLECTIVE_FUNCTIONS = ("_engine_run_backward", "synchronize")  # DDP waits in backward; a device, for its kernels
_STOPPED = ("T", "t")


@dataclass(frozen=True, kw_only=True)
class Stall:
    """Workers that make no progress.

    Attributes:
        quiet_s: for how long.
        reason: what was expected of them.
    """

    quiet_s: float
    reason: str


class HangDetector:
    """Watches the progress of one job, attempt after attempt.

    Call order: begin() for each attempt, note() for each heartbeat, check() a few times a second.

    Args:
        timeout_s: `restart.hang_timeout_s`.
        has_checkpoint: whether the job has a `checkpoint` section, so that its script may tell steps.
        start_s: what is allowed until the first step.
    """

    def __init__(self, timeout_s: float | None, *, has_checkpoint: bool, start_s: float = START_S) -> None:
        self._timeout_s = timeout_s
        self._has_checkpoint = has_checkpoint
        self._start_s = max(start_s, timeout_s or 0.0)
        self._tells_steps = False  # in this attempt or an earlier one
        self._longest_s = 0.0
        self._hang_step = 0  # the newest at which it has hung
        self._hangs = 0  # since a step newer than that
        self._slowest: dict[str, int | None] = {}
        self._nodes_at: Counter[int | None] = Counter()  # of the above, how many nodes have told each: few values
        self._activity: dict[str, int] = {}
        self.begin(0.0)

    def observe(self, event: Mapping[str, Any]) -> None:
        """Takes note of an event of the job."""
        if event["event"] == "first_step":
            self._tells_steps = True
        elif event["event"] == "commit":
            self._gain(event.get("step"))
        elif event["event"] == "fault" and event.get("kind") == "hang":
            self._hangs += 1
            self._hang_step = max(self._hang_step, event.get("step") or 0)

    def begin(self, now_s: float) -> None:
        """An attempt's workers run."""
        self._slowest = {}
        self._nodes_at = Counter()
        self._activity = {}
        self._step: int | None = None  # of the rank furthest behind
        self._over = self._rank_ended = False
        self._step_s = self._active_s = self._checked_s = now_s

    def note(self, node: str, slowest: int | None, activity: int, now_s: float, *, rank_ended: bool = False) -> None:
        """Takes a runner's heartbeat.

        Args:
            node: whose.
            slowest: the step of the node's rank that is furthest behind; None before its first, and when all are done.
            activity: a count that grows while the node's workers write output or use CPU time.
            now_s: monotonic time in seconds.
            rank_ended: whether one of the node's ranks has ended.
        """
        self._rank_ended |= rank_ended
        if self._activity.get(node) != activity:
            self._activity[node] = activity
            self._active_s = now_s
        before = self._slowest.get(node)
        if before == slowest:
            return
        self._slowest[node] = slowest
        self._nodes_at[before] -= 1
        self._nodes_at[slowest] += 1
        if self._nodes_at[before] <= 0:
            del self._nodes_at[before]
        step = min((step for step in self._nodes_at if step is not None), default=None)
        self._over = step is None
        if step == self._step:
            return
        if self._step is not None and step is not None:
            self._longest_s = max(self._longest_s, now_s - self._step_s)
        self._tells_steps |= step is not None
        self._gain(step)
        self._step, self._step_s = step, now_s

    def check(self, now_s: float) -> Stall | None:
        """Judges. None while all is well, or nothing can be told."""
        lag_s = now_s - self._checked_s
        self._checked_s = now_s
        if lag_s > _LAG_S:  # we did not run: neither did we hear
            self._step_s += lag_s
            self._active_s += lag_s
        if self._timeout_s == 0:
            return None
        if self._rank_ended and (stall := self._check_end(now_s)):
            return stall
        if self._over:
            return None
        if self._step is not None:
            return self._check_steps(now_s)
        if self._has_checkpoint:
            return self._check_start(now_s)
        return self._check_silence(now_s)

    @property
    def allowance_s(self) -> float:
        """How long the next step may take."""
        if self._timeout_s is not None:
            return self._timeout_s
        return max(FLOOR_S, STEPS_FACTOR * self._longest_s) * REPEAT_FACTOR**self._hangs

    def _gain(self, step: int | None) -> None:
        if step is not None and step > self._hang_step:
            self._hangs = 0

    def _check_steps(self, now_s: float) -> Stall | None:
        quiet_s = now_s - self._step_s
        if quiet_s <= self.allowance_s:
            return None
        if self._timeout_s is not None:
            limit = f"restart.hang_timeout_s: {self._timeout_s:g}"
        else:
            limit = f"{self.allowance_s:.0f} s allowed, the longest step took {self._longest_s:.1f} s"
        return Stall(quiet_s=quiet_s, reason=f"no step after step {self._step} for {quiet_s:.1f} s ({limit})")

    def _check_start(self, now_s: float) -> Stall | None:
        """No step yet: a script that is known to tell steps is late; of another we can only see that it is silent."""
        quiet_s = now_s - (self._step_s if self._tells_steps else max(self._step_s, self._active_s))
        if quiet_s <= self._start_s:
            return None
        sign = "" if self._tells_steps else ", no output and no CPU time used"
        return Stall(quiet_s=quiet_s, reason=f"no first step{sign} for {quiet_s:.0f} s ({self._start_s:g} s allowed)")

    def _check_end(self, now_s: float) -> Stall | None:
        quiet_s = now_s - max(self._step_s, self._active_s)
        allowed_s = max(ENDED_S, self._timeout_s or 0.0) * REPEAT_FACTOR**self._hangs
        if quiet_s <= allowed_s:
            return None
        reason = f"a rank has ended, and no other did anything for {quiet_s:.1f} s ({allowed_s:g} s allowed)"
        return Stall(quiet_s=quiet_s, reason=reason)

    def _check_silence(self, now_s: float) -> Stall | None:
        quiet_s = now_s - self._active_s
        if self._timeout_s is None or quiet_s <= self._timeout_s:
            return None
        return Stall(
            quiet_s=quiet_s,
            reason=f"no output and no CPU time of any worker for {quiet_s:.1f} s (restart.hang_timeout_s: "
            f"{self._timeout_s:g}; weaker evidence than steps: this job tells none)",
        )


@dataclass(frozen=True, kw_only=True)
class RankStack:
    """Where one rank was when the stacks were taken.

    Attributes:
        rank: the rank.
        node: its node.
        state: the kernel's letter: R, S, D, T (stopped); "" when the process is gone.
        boundary: step boundaries it has passed in this attempt; None when it tells none.
        frames: its main thread's frames as "function (file:line)", innermost first; none when it did not answer.
    """

    rank: int
    node: str
    state: str
    boundary: int | None
    frames: tuple[str, ...]

    @classmethod
    def from_report(cls, node: str, report: Mapping[str, Any]) -> RankStack:
        """From an item of `ranks` in a runner's "stacks"."""
        return cls(
            rank=report["rank"],
            node=node,
            state=report["state"],
            boundary=report["boundary"],
            frames=tuple(report["frames"]),
        )

    @property
    def runs(self) -> bool:
        return self.state not in ("", "Z", "X")

    @property
    def is_stopped(self) -> bool:
        return self.state in _STOPPED

    @property
    def waits_for_others(self) -> bool:
        """Whether it is inside a collective, as far as the Python frames tell."""
        for frame in self.frames:
            if _COLLECTIVE_FILE.search(frame) or frame.startswith(_COLLECTIVE_FUNCTIONS):
                return True
            if "/torch/" not in frame:
                break
        return False

    @property
    def where(self) -> str:
        """The innermost frame outside torch."""
        outside = (frame for frame in self.frames if "/torch/" not in frame)
        return next(outside, self.frames[0] if self.frames else "")


@dataclass(frozen=True, kw_only=True)
class Suspicion:
    """Which rank is at fault, if one stands out.

    Attributes:
        stack: that rank's; None when none stands out.
        text: why, in words.
    """

    stack: RankStack | None
    text: str


def suspect(stacks: Iterable[RankStack], nodes_unheard: Sequence[str] = ()) -> Suspicion:
    """Names the rank that the others wait for.

    Tried in this order: a rank that is stopped; one that does not answer while others do; one outside the collective in
    which others wait; one that has passed fewer step boundaries; one whose stack differs from that of most;
    one that has ended.

    Args:
        stacks: of all ranks whose nodes answered.
        nodes_unheard: nodes whose runners did not answer.
    """
    told = sorted(stacks, key=lambda stack: stack.rank)
    ranks = [stack for stack in told if stack.runs]
    found = _pick([s for s in ranks if s.is_stopped], ranks, "stopped by a signal (state T)")
    found = found or _pick([s for s in ranks if not s.frames], ranks, "does not answer")
    if not found and any(s.waits_for_others for s in ranks):
        found = _pick([s for s in ranks if not s.waits_for_others], ranks, "not in the collective that others wait in")
    found = found or _behind(ranks) or _differing(ranks)
    if not found and len(ranks) == 1 and not ranks[0].waits_for_others:
        found = _pick(ranks, ranks, "the only one that still runs")
    found = found or _pick([s for s in told if not s.runs], told, "has ended before the others")
    if nodes_unheard:
        unheard = f"no stacks came from {','.join(nodes_unheard)}"
        found = Suspicion(stack=found.stack, text=f"{found.text}; {unheard}") if found else None
        return found or Suspicion(stack=None, text=unheard)
    return found or Suspicion(stack=None, text="no single rank stands out")


def _behind(ranks: Sequence[RankStack]) -> Suspicion | None:
    boundaries = {s.boundary for s in ranks if s.boundary is not None}
    if len(boundaries) < 2:
        return None
    return _pick([s for s in ranks if s.boundary == min(boundaries)], ranks, "behind the others by its steps")


def _differing(ranks: Sequence[RankStack]) -> Suspicion | None:
    places = Counter(s.frames[:1] for s in ranks)
    if not places:
        return None
    common, count = places.most_common(1)[0]
    if 2 * count <= len(ranks):
        return None
    return _pick([s for s in ranks if s.frames[:1] != common], ranks, "elsewhere than most")


def _pick(picked: Sequence[RankStack], ranks: Sequence[RankStack], why: str) -> Suspicion | None:
    """A suspicion, unless it fits no rank, or all of several."""
    if not picked or (len(picked) == len(ranks) > 1):
        return None
    first = picked[0]
    at = f", in {first.where}" if first.where else f", state {first.state}" if first.state not in ("", "T", "t") else ""
    others = [str(s.rank) for s in picked[1 : 1 + _SHOWN_RANKS]] + ["..."] * (len(picked) > 1 + _SHOWN_RANKS)
    also = f"; so is rank {', '.join(others)}" if others else ""
    return Suspicion(stack=first, text=f"rank {first.rank} on {first.node}: {why}{at}{also}")
