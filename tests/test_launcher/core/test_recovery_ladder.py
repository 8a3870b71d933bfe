"""The lowest rung that serves, and when to give up."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.core.faults import LOSSES_S
from launcher.core.gains import RAN_S, Event, Gains
from launcher.core.recovery import Decision, choose_rung
from launcher.core.replay import History, replay
from launcher.core.state import RestartLimits

TRACEBACK = 'Traceback (most recent call last):\n  File "/j/t.py", line 3, in <module>\nValueError: 1\n'


class Job:
    """Folds a job's events, attempt after attempt."""

    def __init__(self, can_requeue: bool = True, has_checkpoint: bool = True, **limits: int) -> None:
        self._can_requeue = can_requeue
        self._limits = RestartLimits(**limits)
        self._history = History(has_checkpoint=has_checkpoint)
        self._attempt = -1
        self._now_s = 1000.0
        self.node: str | None = None  # on which attempts fail

    @property
    def gains(self) -> Gains:
        return self._history.gains

    def event(self, event: str, **fields: Any) -> None:
        told: Event = {"event": event, "time": self._now_s, **fields}
        self._history = replay([told], self._history)

    def attempt(
        self,
        fault: str,
        committed: int | None = None,
        trace: str | None = None,
        trained_s: float = 0.0,
        committed_late: int | None = None,
        further: tuple[str, ...] = (),
        after_s: float = 60.0,
        **nodes: bool,
    ) -> Decision:
        """An attempt that ends with a fault.

        Args:
            fault: its kind.
            committed: a step that was committed before the fault.
            trace: the fault's traceback.
            trained_s: for how long its workers ran.
            committed_late: a step that was committed between the fault and the attempt's end.
            further: kinds of faults that are recorded after it.
            after_s: time from the last event to its start.
            nodes: as choose_rung() has them.
        """
        self._attempt += 1
        self._now_s += after_s
        self.event("attempt_start", attempt=self._attempt, nodes=["n1", "n2"])
        if committed is not None:
            self.event("commit", attempt=self._attempt, step=committed, tier="memory")
        if trained_s:
            self.event("workers_started", attempt=self._attempt)
        self._now_s += trained_s
        self.event("fault", attempt=self._attempt, kind=fault, traceback=trace, node=self.node)
        for kind in further:
            self.event("fault", attempt=self._attempt, kind=kind, node=self.node)
        if committed_late is not None:
            self.event("commit", attempt=self._attempt, step=committed_late, tier="memory")
        self.event("attempt_end", attempt=self._attempt)
        return self.decide(**nodes)

    def decide(
        self, reason: str = "why", *, nodes_suffice: bool = True, nodes_changed: bool = False, has_spare: bool = False
    ) -> Decision:
        return choose_rung(
            self.gains,
            self._limits,
            reason,
            has_checkpoint=self._history.has_checkpoint,
            can_requeue=self._can_requeue,
            nodes_suffice=nodes_suffice,
            nodes_changed=nodes_changed,
            has_spare=has_spare,
        )


def test_process_fault_restarts_workers_in_place() -> None:
    decision = Job().attempt("process_exit")
    assert (decision.action, decision.rung) == ("restart", "workers")


def test_node_fault_swaps_in_a_spare() -> None:
    decision = Job().attempt("node_lost", nodes_changed=True)
    assert (decision.action, decision.rung) == ("restart", "spare")


def test_without_a_spare_the_scheduler_gets_the_job_back() -> None:
    decision = Job().attempt("node_lost", nodes_suffice=False, nodes_changed=True)
    assert (decision.action, decision.rung) == ("requeue", "requeue")


def test_without_a_spare_or_a_scheduler_the_job_ends() -> None:
    decision = Job(can_requeue=False).attempt("node_lost", nodes_suffice=False, nodes_changed=True)
    assert (decision.action, decision.outcome) == ("stop", "too_few_nodes")


def test_attempts_without_progress_are_limited() -> None:
    job = Job(max_without_progress=2)
    assert job.attempt("process_exit", committed=5).action == "restart"
    job.event("restore", step=5, attempt=0)
    assert job.attempt("process_exit", committed=5).action == "restart"
    decision = job.attempt("node_lost", committed=5)
    assert (decision.action, decision.outcome) == ("stop", "no_progress")
    assert "2 attempts in a row" in decision.reason and "why" in decision.reason


def test_a_node_on_which_attempts_fail_is_swapped_before_the_job_gives_up() -> None:
    job = Job(max_without_progress=2)
    job.node = "n1"
    assert job.attempt("process_exit", has_spare=True).rung == "workers"
    decision = job.attempt("hang", has_spare=True)
    assert (decision.action, decision.rung) == ("restart", "spare") and job.gains.suspects == {"n1"}
    job.node = "n2"
    assert job.attempt("process_exit", has_spare=True).outcome == "no_progress"


def test_a_node_on_which_attempts_fail_is_replaced_by_a_requeue_where_the_spare_is_not_enough() -> None:
    job = Job(max_without_progress=2)
    job.node = "n1"
    job.attempt("process_exit", has_spare=True)
    decision = job.attempt("process_exit", has_spare=True, nodes_suffice=False, nodes_changed=True)
    assert (decision.action, decision.rung) == ("requeue", "requeue")


def test_a_node_on_which_attempts_fail_ends_the_job_where_neither_spares_nor_a_requeue_help() -> None:
    job = Job(can_requeue=False, max_without_progress=2)
    job.node = "n1"
    job.attempt("process_exit", has_spare=True)
    assert job.attempt("process_exit", has_spare=True, nodes_suffice=False).outcome == "no_progress"


def test_without_a_spare_a_node_on_which_attempts_fail_stays() -> None:
    job = Job(max_without_progress=2)
    job.node = "n1"
    job.attempt("process_exit")
    assert job.attempt("process_exit").outcome == "no_progress"


def test_a_node_is_no_suspect_once_a_step_is_gained() -> None:
    job = Job(max_without_progress=9)
    job.node = "n1"
    for committed in (1, 2, 3):
        assert job.attempt("process_exit", committed=committed, has_spare=True).rung == "workers"
    assert job.gains.suspects == set()


@pytest.mark.parametrize(
    ("kind", "trained_s", "most"),
    [("node_lost", RAN_S, 12), ("node_lost", RAN_S - 1, 3), ("process_exit", RAN_S, 3), ("hang", 2 * RAN_S, 3)],
)
def test_four_attempts_that_lost_a_node_after_long_training_count_as_one(
    kind: str, trained_s: float, most: int
) -> None:
    """A job that saves each half hour loses some attempts in a row to unrelated faults."""
    job = Job(max_without_progress=3)
    job.attempt("process_exit", committed=1)
    for _ in range(most - 1):
        assert job.attempt(kind, trained_s=trained_s).action == "restart"
    decision = job.attempt(kind, trained_s=trained_s)
    assert decision.outcome == "no_progress" and f"{most} attempts in a row" in decision.reason
    assert ("lost a node after" in decision.reason) is (most == 12)


def test_four_attempts_that_committed_again_what_was_lost_count_as_one() -> None:
    """The next attempt may go on from there. A job that kills its nodes after each commit ends all the same."""
    job = Job(max_without_progress=3)
    job.attempt("node_lost", committed=10)
    for _ in range(2):
        assert job.attempt("node_lost").action == "restart"
    for _ in range(3):
        assert job.attempt("process_exit", committed=10).action == "restart"
    decision = job.attempt("process_exit", committed=10)
    assert decision.outcome == "no_progress" and "4 of them" in decision.reason and "committed again" in decision.reason


def test_what_is_committed_again_counts_only_beyond_the_step_from_which_attempts_went_on() -> None:
    job = Job(max_without_progress=2)
    job.attempt("node_lost", committed=30)
    job.event("restore", step=20, attempt=1)
    assert job.attempt("process_exit", committed=20).action == "restart"
    assert job.attempt("process_exit", committed=20).outcome == "no_progress"


def test_a_lower_tier_that_commits_an_older_step_later_takes_nothing_from_what_is_committed_again() -> None:
    job = Job(max_without_progress=2)
    job.attempt("node_lost", committed=30)
    job.event("restore", step=20, attempt=1)
    assert job.attempt("process_exit", committed=25, committed_late=15).action == "restart"
    assert job.attempt("process_exit").action == "restart", "the first counts as a quarter"


def test_progress_starts_the_count_of_lost_nodes_anew() -> None:
    job = Job(max_without_progress=1)
    for step in (1, 2):
        for _ in range(3):
            assert job.attempt("node_lost", trained_s=RAN_S).action == "restart"
        assert job.attempt("node_lost", committed=step, trained_s=RAN_S).action == "restart"


def test_progress_starts_the_count_anew() -> None:
    job = Job(max_without_progress=2)
    for step in range(1, 10):
        assert job.attempt("process_exit", committed=step).action == "restart"
        assert job.attempt("process_exit").action == "restart"


def test_the_first_restart_is_immediate_and_each_further_one_waits_twice_as_long_up_to_a_minute() -> None:
    job = Job(max_without_progress=20)
    delays_s = [job.attempt("process_exit").delay_s for _ in range(9)]
    assert delays_s == [0, 2, 4, 8, 16, 32, 60, 60, 60]


def test_the_delay_of_a_job_that_restarts_for_ever_stays_a_minute() -> None:
    job = Job(max_without_progress=2000, max_restarts=2000)
    assert {job.attempt("process_exit").delay_s for _ in range(1100)} >= {0.0, 60.0}


def test_faults_of_other_kinds_count_towards_the_delay_one_restart_later_until_a_step_is_gained() -> None:
    job = Job(max_without_progress=20)
    kinds = ("process_exit", "node_lost", "process_exit", "node_lost", "process_exit")
    assert [job.attempt(kind).delay_s for kind in kinds] == [0, 0, 2, 4, 8]
    assert [job.attempt("process_exit", committed=step).delay_s for step in (1, 2, 3)] == [0, 0, 0]
    assert [job.attempt("process_exit").delay_s, job.attempt("node_lost").delay_s] == [2, 2]


def test_a_fault_that_says_nothing_of_the_job_adds_no_delay() -> None:
    job = Job(max_without_progress=20)
    job.attempt("process_exit")
    assert [job.attempt("scheduler_lost").delay_s, job.attempt("scheduler_lost").delay_s] == [0, 0]


def test_restarts_are_limited_in_spite_of_progress() -> None:
    job = Job(max_restarts=3)
    actions = [job.attempt("process_exit", committed=step).action for step in (1, 2, 3, 4)]
    assert actions == ["restart"] * 3 + ["stop"]


def test_no_restart_at_all_when_none_is_allowed() -> None:
    assert Job(max_restarts=0).attempt("process_exit", committed=1).outcome == "no_progress"


def test_same_user_error_twice_without_progress_ends_the_job() -> None:
    job = Job()
    assert job.attempt("user_error", trace=TRACEBACK).action == "restart"
    assert job.attempt("user_error", trace=TRACEBACK.replace(": 1", ": 2")).outcome == "user_error"


@pytest.mark.parametrize("committed", [None, 7])
def test_same_user_error_after_progress_or_another_fault_is_tried_again(committed: int | None) -> None:
    job = Job(max_without_progress=10)
    job.attempt("user_error", trace=TRACEBACK)
    if committed is None:
        job.attempt("node_lost")
    assert job.attempt("user_error", committed=committed, trace=TRACEBACK).action == "restart"


def test_only_the_decisive_fault_of_an_attempt_counts() -> None:
    job = Job(max_without_progress=2)
    job.node = "n1"
    job.attempt("hang", further=("node_lost", "hang", "preflight"))
    assert (job.gains.fruitless, job.gains.kind, dict(job.gains.repeats)) == (1, "hang", {"hang": 1})
    assert job.gains.suspects == set()
    job.event("fault", kind="preflight")
    assert job.decide(nodes_changed=True).action == "restart"


def test_a_step_that_is_committed_between_the_fault_and_the_attempts_end_is_a_gain() -> None:
    job = Job(max_without_progress=2)
    assert [job.attempt("hang", committed_late=step).action for step in (1, 2, 3)] == ["restart"] * 3
    job.event("restore", step=3, attempt=2)
    assert job.attempt("hang", committed_late=3).action == "restart", "the first that gained nothing"
    assert job.attempt("hang").outcome == "no_progress"


@pytest.mark.parametrize("lost", ["job_start", "attempt_start"])
def test_a_fault_counts_though_the_end_of_its_attempt_was_not_recorded(lost: str) -> None:
    """As where the supervisor is lost between the two."""
    job = Job(max_without_progress=2)
    job.event("attempt_start", attempt=0, nodes=["n1"])
    job.event("fault", attempt=0, kind="hang", node="n1")
    job.event(lost, attempt=1, nodes=["n1"])
    assert job.gains.fruitless == 1


def test_counts_go_on_after_a_requeue() -> None:
    job = Job(max_without_progress=2)
    job.attempt("node_lost", nodes_suffice=False)
    job.event("job_start")
    job.event("fault", kind="start_timeout", time=2000.0)
    assert job.decide(nodes_suffice=False).outcome == "no_progress"


def test_runners_that_are_lost_one_shortly_after_the_other_are_one_fault() -> None:
    """When a step is cancelled, each of its runners ends at a moment of its own."""
    job = Job(max_without_progress=2)
    for _ in range(5):
        assert job.attempt("node_lost", after_s=0.5).action == "restart"
    job.event("fault", kind="start_timeout")
    assert job.decide().action == "restart"
    assert job.attempt("node_lost", after_s=LOSSES_S + 0.1).outcome == "no_progress"


def test_a_fabric_that_is_required_and_not_used_ends_the_job_without_a_requeue() -> None:
    """It would be the same on every attempt; nobody is to pay for training over sockets."""
    job = Job()
    job.attempt("fabric")
    decision = job.decide("n1: NCCL uses network Socket")
    assert (decision.action, decision.outcome) == ("stop", "fabric")
    assert "NCCL uses network Socket" in decision.reason and "fabric: require" in decision.reason


def test_a_silent_scheduler_is_not_held_against_the_job() -> None:
    job = Job(max_without_progress=2)
    job.attempt("process_exit")
    for _ in range(5):
        assert job.attempt("scheduler_lost").action == "restart"
    assert job.attempt("process_exit").outcome == "no_progress"


def test_a_job_that_keeps_its_own_checkpoints_gains_by_newer_files() -> None:
    job = Job(has_checkpoint=False)
    job.event("own_checkpoint", file="out/7.pt", modified=500.0)  # of a run before
    for modified in (510.0, 520.0, 530.0, 540.0):
        job.event("own_checkpoint", file="out/8.pt", modified=modified)
        assert job.attempt("process_exit", trained_s=5.0).action == "restart"
    assert [job.attempt("process_exit", trained_s=9000.0).action for _ in range(3)] == ["restart", "restart", "stop"]
    ended = job.attempt("process_exit")
    assert ended.outcome == "no_progress" and "wrote no newer file that `progress` matches" in ended.reason


def test_a_job_that_tells_nothing_of_its_progress_gains_by_the_time_it_trained() -> None:
    job = Job(has_checkpoint=False)
    assert [job.attempt("node_lost", trained_s=RAN_S).action for _ in range(5)] == ["restart"] * 5
    assert [job.attempt("node_lost", trained_s=RAN_S - 1).action for _ in range(3)] == ["restart", "restart", "stop"]
    assert "ran for less than" in job.attempt("node_lost").reason
    assert [Job(max_without_progress=1).attempt("process_exit", trained_s=RAN_S).action] == ["stop"], "it commits steps"


def test_the_same_error_twice_is_the_scripts_however_long_it_trained() -> None:
    job = Job(has_checkpoint=False)
    job.attempt("user_error", trace=TRACEBACK, trained_s=RAN_S)
    assert job.attempt("user_error", trace=TRACEBACK, trained_s=RAN_S).outcome == "user_error"


def test_where_no_checkpoint_agents_come_up_the_job_is_requeued_once_then_given_up() -> None:
    job = Job()
    assert job.attempt("agent_lost", committed=10).rung == "workers"
    assert job.attempt("agent_lost").action == "requeue"
    job.event("job_start")
    assert job.attempt("agent_lost").rung == "workers"
    assert job.attempt("agent_lost").outcome == "no_progress"
