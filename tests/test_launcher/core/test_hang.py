"""When workers count as hung. Times are given, none pass."""

from __future__ import annotations

import pytest
from talkers import heartbeat

from launcher.connections.reports import Heartbeats
from launcher.core.frozen import replace
from launcher.core.hang import START_S, Hang
from launcher.core.replay import History, replay

NODES = ("a", "b")


class Attempt:
    """Tells the watch what two nodes' heartbeats say together."""

    def __init__(self, timeout_s: float | None, *, has_checkpoint: bool = True) -> None:
        self.now_s = 1000.0
        self.rank_ended = False
        self.section = "step"
        self._number = -1
        self._activity = 0
        self._heartbeats = Heartbeats()
        self._history = History(has_checkpoint=has_checkpoint)
        self.hang = Hang(timeout_s=timeout_s, has_checkpoint=has_checkpoint, start_s=100.0)
        self.begin()

    def begin(self) -> None:
        self._number += 1
        self.hang = self.hang.begin(self.now_s)

    def event(self, event: str, **fields: object) -> None:
        self._history = replay([{"event": event, "time": self.now_s, **fields}], self._history)

    @property
    def hangs(self) -> int:
        is_newer = self.hang.step is not None and self.hang.step > self._history.hang_step
        return 0 if is_newer else self._history.hangs

    @property
    def tells_steps(self) -> bool:
        return self._history.tells_steps or self.hang.step is not None

    @property
    def allowance_s(self) -> float:
        return self.hang.allowance_s(self.hangs)

    def beat(self, *slowest: int | None, busy: bool = True) -> None:
        self._activity += busy
        for node, step in zip(NODES, slowest, strict=True):
            state = {"activity": self._activity, "rank_ended": self.rank_ended}
            state["section"] = self.section if node == NODES[0] else "step"
            self._heartbeats.add(node, heartbeat(attempt=self._number, step=step, slowest=step, **state))
        told = self._heartbeats.progress()
        if told is not None:
            self.hang = self.hang.enter(told.section, self.now_s).note(
                told.slowest, self.now_s, is_active=told.is_active, is_over=told.is_over, rank_ended=told.rank_ended
            )

    def check(self) -> str | None:
        known = {"tells_steps": self.tells_steps, "longest_start_s": self._history.longest_start_s}
        stall = self.hang.check(self.now_s, self.hangs, **known)
        due_s = self.hang.due_s(self.hangs, **known)
        assert (stall is not None) == (due_s is not None and due_s <= self.now_s), "the timer is not that of the check"
        return stall.reason if stall is not None else None

    def passes(self, seconds: float, *slowest: int | None, busy: bool = True) -> str | None:
        """Time passes with heartbeats that say the same; returns what is found, and at once."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += 0.5
            self.beat(*slowest, busy=busy)
            if reason := self.check():
                return reason
        return None


def test_steps_that_come_in_time_are_no_hang() -> None:
    attempt = Attempt(10.0)
    assert not any(attempt.passes(9, step, step) for step in range(1, 20))


def test_no_step_for_the_timeout_is_a_hang_though_the_workers_are_busy() -> None:
    attempt = Attempt(10.0)
    assert attempt.passes(5, 7, 7) is None
    assert attempt.passes(10, 7, 7) == "no step after step 7 for 10.0 s (restart.hang_timeout_s: 10)"


def test_one_rank_that_stays_behind_is_a_hang_though_the_others_go_on() -> None:
    attempt = Attempt(10.0)
    assert [attempt.passes(3, 7, step) is None for step in (7, 8, 9, 10)] == [True, True, True, False]


def test_zero_never_takes_workers_for_hung() -> None:
    assert Attempt(0).passes(20_000, 7, 7) is None


def test_adaptive_timeout_has_a_floor_and_follows_the_longest_step() -> None:
    attempt = Attempt(None)
    attempt.passes(1, 1, 1)
    attempt.passes(1, 2, 2)
    assert attempt.allowance_s == 300
    attempt.passes(40, 2, 2)  # a save, an evaluation
    attempt.passes(1, 3, 3)
    assert attempt.allowance_s == 20 * 41
    assert attempt.passes(819, 3, 3) is None
    assert "820 s allowed, the longest step took 41.0 s" in (attempt.passes(5, 3, 3) or "")


def test_work_without_steps_that_was_taken_for_a_hang_gets_longer_until_it_is_done() -> None:
    attempt = Attempt(None)
    for allowed_s in (300, 1200, 4800):
        attempt.passes(1, 40, 40)
        assert attempt.allowance_s == allowed_s
        attempt.event("fault", kind="hang", step=40)
        attempt.begin()
    attempt.passes(1, 40, 40)
    attempt.passes(1, 41, 41)
    assert attempt.allowance_s == 300


def test_a_long_evaluation_or_save_that_the_script_tells_is_no_hang() -> None:
    attempt = Attempt(None)
    attempt.passes(1, 7, 7)
    for section, least_s in (("checkpoint", 900), ("evaluation", 1800)):
        attempt.section = section
        assert attempt.passes(least_s - 1, 7, 7) is None and attempt.allowance_s == least_s
        attempt.section = "step"
        assert attempt.passes(299, 7, 7) is None, "the time of the step begins again"
        attempt.passes(1, 8, 8)
        attempt.passes(1, 7, 7)


def test_the_limit_of_a_section_is_learned_and_its_time_does_not_count_as_a_steps() -> None:
    attempt = Attempt(None)
    attempt.passes(1, 7, 7)
    attempt.section = "evaluation"
    attempt.passes(600, 7, 7)
    attempt.section = "step"
    attempt.passes(1, 7, 7)
    attempt.passes(1, 8, 8)
    assert attempt.allowance_s == 300
    attempt.section = "evaluation"
    attempt.passes(1, 8, 8)
    assert attempt.allowance_s == 20 * 600
    said = attempt.passes(20 * 600 + 1, 8, 8) or ""
    assert (
        said.startswith("evaluation without an end after step 8 for 12") and "longest evaluation took 600.0 s" in said
    )


def test_the_timeout_of_the_job_file_holds_for_each_section() -> None:
    attempt = Attempt(10.0)
    assert attempt.passes(9, 7, 7) is None
    attempt.section = "evaluation"
    assert attempt.passes(9, 7, 7) is None, "the evaluation has its own time"
    assert "evaluation without an end" in (attempt.passes(5, 7, 7) or "")


def test_the_first_step_may_take_longer() -> None:
    attempt = Attempt(10.0)
    attempt.event("first_step")  # of an attempt before: this script tells its steps
    assert attempt.passes(99, None, None) is None
    assert attempt.passes(1, None, None) == "no first step for 100 s (100 s allowed)"


def test_the_limit_of_a_start_is_learned_from_the_starts_before_also_of_other_supervisors() -> None:
    attempt = Attempt(None)
    attempt.event("first_step", seconds=30.0)
    assert attempt.passes(899, None, None) is None
    said = attempt.passes(1, None, None)
    assert said == "no first step for 900 s (900 s allowed, the longest start so far took 30.0 s)"
    for seconds in (400.0, 60.0):
        attempt.event("first_step", seconds=seconds)
    attempt.begin()
    assert attempt.passes(7999, None, None) is None
    assert "the longest start so far took 400.0 s" in (attempt.passes(1, None, None) or "")


def test_after_a_hang_a_start_has_the_time_of_the_first_one_and_a_longer_timeout_always_counts() -> None:
    attempt = Attempt(None)
    attempt.hang = replace(attempt.hang, start_s=START_S)
    attempt.event("first_step", seconds=30.0)
    attempt.event("fault", kind="hang", step=0)
    attempt.begin()
    assert attempt.passes(START_S - 1, None, None) is None
    assert "1800 s allowed" in (attempt.passes(1, None, None) or "")
    patient = Attempt(5000.0)
    patient.event("first_step", seconds=30.0)
    assert patient.passes(4999, None, None) is None and "5000 s allowed" in (patient.passes(1, None, None) or "")


@pytest.mark.parametrize("timeout_s", [10.0, None])
def test_a_script_that_may_never_tell_steps_has_to_be_silent_as_well(timeout_s: float | None) -> None:
    attempt = Attempt(timeout_s)
    assert attempt.passes(1000, None, None) is None
    assert attempt.passes(99, None, None, busy=False) is None
    assert "no first step, no output and no CPU time used" in (attempt.passes(2, None, None, busy=False) or "")


def test_ranks_that_are_done_are_not_waited_for() -> None:
    attempt = Attempt(10.0)
    attempt.passes(1, 50, 50)
    assert not any(attempt.passes(9, None, step) for step in range(51, 60))
    assert attempt.passes(1000, None, None) is None


def test_job_without_steps_is_judged_by_silence_and_only_when_asked() -> None:
    attempt = Attempt(10.0, has_checkpoint=False)
    assert attempt.passes(1000, None, None) is None
    said = attempt.passes(15, None, None, busy=False) or ""
    assert said.startswith("no output and no CPU time of any worker for 10.") and "weaker evidence" in said
    assert Attempt(None, has_checkpoint=False).passes(10_000, None, None, busy=False) is None


@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_ranks_that_stand_still_when_another_has_ended_hang(has_checkpoint: bool) -> None:
    attempt = Attempt(None, has_checkpoint=has_checkpoint)
    attempt.passes(1, 3, 3)
    attempt.rank_ended = True
    assert attempt.passes(5000, None, None) is None, "busy with its last work"
    assert attempt.passes(899, None, None, busy=False) is None
    assert (attempt.passes(2, None, None, busy=False) or "").startswith("a rank has ended, and no other did anything")
    attempt.event("fault", kind="hang", step=3)
    attempt.begin()
    attempt.passes(1, 3, 3)
    assert attempt.passes(3600, None, None, busy=False) is None
    assert attempt.passes(2, None, None, busy=False) is not None
    assert Attempt(0).passes(10_000, None, None, busy=False) is None


def test_a_supervisor_that_did_not_run_blames_nobody() -> None:
    attempt = Attempt(10.0)
    attempt.passes(5, 7, 7)
    attempt.now_s += 3600
    attempt.hang = attempt.hang.pause(3600)
    assert attempt.check() is None
    assert attempt.passes(4, 7, 7) is None
    assert attempt.passes(3, 7, 7) is not None
