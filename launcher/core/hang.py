"""Detects whether the workers hang. Pure.

A script that reports its steps (`ckpt.should_save`, `ckpt.should_stop`) hangs if the slowest rank makes no step within
the timeout. The timeout is `restart.hang_timeout_s`. If that is not set, it is

    max(300 s, 20 x the longest step so far) x 4 for each hang since the last new step

The same holds for a save and for an evaluation that the script tells (`ckpt.section`), with the longest save and
evaluation so far, and at least CHECKPOINT_S and EVALUATION_S. Their time begins when they begin. The factor 4 is for
long work that the script does not tell: it is taken for a hang once or twice, and then has enough time. A rank that has
closed its Checkpointer, or has ended, is ignored.

The first step of an attempt may take START_S as long as no attempt of the job has made one, and after a hang. Else it
may take max(STARTED_S, 20 x the longest start of all attempts). `restart.hang_timeout_s` counts here only if it is
longer, because a start takes longer than a step.

A script that reports no steps can only be judged by silence: no output and no CPU time of any worker. This is weaker
evidence, because a rank may spin while it waits, and a GPU may work while all ranks are silent. So it is used only if
the timeout is set.

Once a rank has ended, the others must end too, in any script. They hang if they are silent and make no step for ENDED_S
(or the timeout, if that is longer), x 4 for each hang as above.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from launcher.core.frozen import replace

START_S = 1800.0  # until the first step: compilation, data, a slow restore
STARTED_S = 900.0  # the same, at least, once the job has shown how long it takes
ENDED_S = 900.0  # for example an upload by another program, which shows no activity of the rank itself
FLOOR_S = 300.0
CHECKPOINT_S = 900.0
EVALUATION_S = 1800.0
STEPS_FACTOR = 20.0
REPEAT_FACTOR = 4.0

_LONGEST = "({allowed:.0f} s allowed, the longest {section} took {longest:.1f} s)"
_TIMEOUT = "(restart.hang_timeout_s: {allowed:g})"
_STARTED = ", the longest start so far took {longest_start:.1f} s"


class WorkSection(StrEnum):
    """What the ranks do between two step boundaries, by the length of its limit."""

    STEP = "step"
    CHECKPOINT = "checkpoint"
    EVALUATION = "evaluation"


@dataclass(frozen=True, kw_only=True)
class Stall:
    """Workers that make no progress.

    Attributes:
        quiet_s: seconds without progress.
        reason: what the workers did not do, in words.
    """

    quiet_s: float
    reason: str


@dataclass(frozen=True, kw_only=True)
class Hang:
    """The progress of one attempt, as far as hang detection needs it. Times are monotonic seconds.

    Attributes:
        timeout_s: `restart.hang_timeout_s`.
        has_checkpoint: whether the job has a `checkpoint` section, so that its script may tell steps.
        start_s: time allowed until the first step, as long as no attempt has shown how long it takes.
        longest_s, longest_checkpoint_s, longest_evaluation_s: the longest step, save and evaluation of all attempts.
        section, section_s: what the ranks do, and since when.
        step: step of the slowest rank; None before the first.
        step_s, active_s: time at which that step was finished; time of the last activity of any worker.
        is_over: whether no rank will report another step.
        rank_ended: whether a rank has ended.
    """

    timeout_s: float | None = None
    has_checkpoint: bool = True
    start_s: float = START_S
    longest_s: float = 0.0
    longest_checkpoint_s: float = 0.0
    longest_evaluation_s: float = 0.0
    section: WorkSection = WorkSection.STEP
    section_s: float = 0.0
    step: int | None = None
    step_s: float = 0.0
    active_s: float = 0.0
    is_over: bool = False
    rank_ended: bool = False

    def begin(self, now_s: float) -> Hang:
        """Starts the times at the moment when an attempt's workers run."""
        begun = replace(self, step=None, step_s=now_s, active_s=now_s, is_over=False, rank_ended=False)
        return replace(begun, section=WorkSection.STEP, section_s=now_s)

    def enter(self, section: WorkSection, now_s: float) -> Hang:
        """Updates what the ranks do. A section that ends shows how long such a section may take."""
        if section is self.section:
            return self
        took_s = now_s - self.section_s
        ended = replace(self, section=section, section_s=now_s)
        if self.section is WorkSection.CHECKPOINT:
            return replace(ended, longest_checkpoint_s=max(self.longest_checkpoint_s, took_s))
        if self.section is WorkSection.EVALUATION:
            return replace(ended, longest_evaluation_s=max(self.longest_evaluation_s, took_s))
        return ended

    def note(self, slowest: int | None, now_s: float, *, is_active: bool, is_over: bool, rank_ended: bool) -> Hang:
        """Updates the progress.

        Args:
            slowest: the step of the slowest rank; None before the first.
            now_s: the current time.
            is_active: whether any worker wrote output or used CPU time.
            is_over: whether no rank will report another step.
            rank_ended: whether a rank has ended.
        """
        active_s = now_s if is_active else self.active_s
        if slowest == self.step:
            return replace(self, active_s=active_s, is_over=is_over, rank_ended=rank_ended)
        longest_s = self.longest_s
        if self.step is not None and slowest is not None and self.section is WorkSection.STEP:
            longest_s = max(longest_s, now_s - max(self.step_s, self.section_s))
        stepped = replace(self, step=slowest, step_s=now_s, longest_s=longest_s)
        return replace(stepped, active_s=active_s, is_over=is_over, rank_ended=rank_ended)

    def pause(self, seconds: float) -> Hang:
        """Moves all times by a period in which no progress could be received."""
        moved = replace(self, step_s=self.step_s + seconds, active_s=self.active_s + seconds)
        return replace(moved, section_s=self.section_s + seconds)

    def limits(
        self, hangs: int, *, tells_steps: bool, longest_start_s: float = 0.0
    ) -> Iterator[tuple[float, float, str]]:
        """The limits: start, allowed seconds, and the reason if the limit is exceeded.

        Args:
            hangs: number of hangs since the last new step.
            tells_steps: whether the script has ever reported a step.
            longest_start_s: the longest time that an attempt took until its first step; 0 if none has made one.
        """
        if self.timeout_s == 0:
            return
        if self.rank_ended:
            allowed_s = max(ENDED_S, self.timeout_s or 0.0) * REPEAT_FACTOR**hangs
            since_s = max(self.step_s, self.active_s)
            text = "a rank has ended, and no other did anything for {quiet:.1f} s ({allowed:g} s allowed)"
            yield since_s, allowed_s, text
        if self.is_over:
            return
        if self.step is not None:
            what = "no step" if self.section is WorkSection.STEP else "{section} without an end"
            text = what + " after step {step} for {quiet:.1f} s " + (_LONGEST if self.timeout_s is None else _TIMEOUT)
            yield max(self.step_s, self.section_s), self.allowance_s(hangs), text
        elif self.has_checkpoint:  # a script that reports steps is late; another one is only silent
            start_s = max(self._start_s(hangs, longest_start_s), self.timeout_s or 0.0)
            sign = "" if tells_steps else ", no output and no CPU time used"
            since_s = self.step_s if tells_steps else max(self.step_s, self.active_s)
            started = _STARTED.format(longest_start=longest_start_s) if longest_start_s else ""
            yield (
                since_s,
                start_s,
                "no first step" + sign + " for {quiet:.0f} s ({allowed:.0f} s allowed" + f"{started})",
            )
        elif self.timeout_s is not None:
            text = (
                "no output and no CPU time of any worker for {quiet:.1f} s "
                "(restart.hang_timeout_s: {allowed:g}; weaker evidence than steps: this job tells none)"
            )
            yield self.active_s, self.timeout_s, text

    def _start_s(self, hangs: int, longest_start_s: float) -> float:
        if not longest_start_s:
            return self.start_s
        learned_s = max(STARTED_S, STEPS_FACTOR * longest_start_s)
        return max(learned_s, self.start_s) if hangs else learned_s

    def check(self, now_s: float, hangs: int, *, tells_steps: bool, longest_start_s: float = 0.0) -> Stall | None:
        """The stall if the workers hang; None if they do not, or if it cannot be known."""
        limits = self.limits(hangs, tells_steps=tells_steps, longest_start_s=longest_start_s)
        for since_s, allowed_s, text in limits:
            if now_s >= since_s + allowed_s:
                quiet_s = now_s - since_s
                known = {"step": self.step, "section": self.section, "longest": self._floor_and_longest[1]}
                reason = text.format(quiet=quiet_s, allowed=allowed_s, **known)
                return Stall(quiet_s=quiet_s, reason=reason)
        return None

    def due_s(self, hangs: int, *, tells_steps: bool, longest_start_s: float = 0.0) -> float | None:
        """The time of the next check; None for no check."""
        limits = self.limits(hangs, tells_steps=tells_steps, longest_start_s=longest_start_s)
        return min([since_s + allowed_s for since_s, allowed_s, _ in limits], default=None)

    def allowance_s(self, hangs: int) -> float:
        """The seconds that the next step may take, or the section in which the ranks are."""
        if self.timeout_s is not None:
            return self.timeout_s
        floor_s, longest_s = self._floor_and_longest
        return max(floor_s, STEPS_FACTOR * longest_s) * REPEAT_FACTOR**hangs

    @property
    def _floor_and_longest(self) -> tuple[float, float]:
        if self.section is WorkSection.CHECKPOINT:
            return CHECKPOINT_S, self.longest_checkpoint_s
        if self.section is WorkSection.EVALUATION:
            return EVALUATION_S, self.longest_evaluation_s
        return FLOOR_S, self.longest_s
