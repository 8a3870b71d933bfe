"""What follows a fault by its class: `restart.on`, its defaults, and `log_rules`."""

from __future__ import annotations

from typing import Any

import pytest
from core_kit import EPOCH_S, Play, make_job

from launcher.core import inputs
from launcher.core.faults import FaultKind
from launcher.core.state import RestartLimits
from launcher.diagnosis import FaultClass, NodeEvidence, WorkerFailure
from launcher.diagnosis.policy import Action

MISSING = "ModuleNotFoundError: No module named 'einops'"
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=12, GPU has fallen off the bus."
NAN = "FloatingPointError: Loss became infinite or NaN at iteration=7!"


def failing(play: Play, error: str | None, *nodes: str, kernel: tuple[str, ...] = (), **fields: Any) -> None:
    number, known = play.attempt.number, play.attempt.nodes
    failures = {
        node: WorkerFailure(node=node, rank=known.index(node), exit_code=1, time_s=EPOCH_S, error=error, **fields)
        for node in nodes or known
    }
    evidence = NodeEvidence(kernel=kernel)
    play.give(
        *(
            inputs.WorkersEnded(node=node, attempt=number, ok=False, failures=(failure,), evidence=evidence)
            for node, failure in failures.items()
        )
    )
    play.passes(2.0)


def begun(nodes: int = 2, *, train: int | None = None, on: dict[str, str] | None = None, **fields: Any) -> Play:
    play = Play(make_job(nodes, train=train, limits=RestartLimits(on=on or {}, max_without_progress=9), **fields))
    play.run()
    return play


def test_what_cannot_succeed_again_is_not_tried_again() -> None:
    play = begun()
    failing(play, MISSING)
    assert play.end is not None and play.end.outcome == "not_retried" and MISSING in play.end.reason
    assert len(play.events("attempt_start")) == 1
    (fault,) = play.events("fault")
    assert (fault["class"], fault["domain"], fault["proof"]) == ("import", "user", MISSING)
    assert fault["advice"].startswith("install what is missing") and fault["alike"] == 1


def test_a_single_node_of_several_may_lack_a_file_system() -> None:
    play = begun(3)
    failing(play, MISSING, "n1")
    assert play.end is None and len(play.events("attempt_start")) == 2


def test_a_job_that_has_made_a_step_is_tried_again() -> None:
    play = begun(has_checkpoint=True)
    play.give(inputs.FirstStep(node="n1", attempt=0, step=1, time_s=EPOCH_S))
    failing(play, MISSING)
    assert play.end is None


def test_a_job_that_ran_long_without_telling_steps_is_tried_again() -> None:
    play = begun()
    play.passes(400.0)
    failing(play, MISSING)
    assert play.end is None


def test_an_error_of_the_script_that_may_go_away_is_tried_again() -> None:
    play = begun()
    failing(play, NAN)
    assert play.end is None and play.events("fault")[0]["class"] == "loss"


@pytest.mark.parametrize("action", [Action.STOP, Action.REQUEUE])
def test_the_job_file_says_what_follows_a_class(action: Action) -> None:
    play = begun(on={"loss": action.value})
    failing(play, NAN)
    assert play.end is not None
    assert play.end.outcome == {Action.STOP: "not_retried", Action.REQUEUE: "stopped"}[action]


def test_a_class_that_is_retried_is_retried_after_the_same_error_twice() -> None:
    for on, is_over in (({}, True), ({"loss": "retry"}, False)):
        play = begun(on=on)
        for _ in range(2):
            failing(play, NAN, traceback=NAN)
            if play.end is None:
                play.train()
        assert (play.end is not None) is is_over


def test_a_node_whose_gpu_has_failed_leaves_for_a_spare_at_once() -> None:
    play = begun(3, train=2)
    failing(play, "RuntimeError: CUDA error: unknown error", "n2", kernel=(XID,))
    assert [event["nodes"] for event in play.events("attempt_start")] == [["n1", "n2"], ["n1", "n3"]]
    assert play.out["n2"].startswith("gpu: ") and play.events("attempt_start")[1]["rung"] == "spare"


def test_a_spare_that_another_lost_node_needs_is_not_taken_for_a_swap() -> None:
    play = begun(3, train=2)
    failure = WorkerFailure(node="n2", rank=1, exit_code=1, time_s=EPOCH_S, error="RuntimeError: CUDA error: unknown")
    ended = inputs.WorkersEnded(
        node="n2", attempt=0, ok=False, failures=(failure,), evidence=NodeEvidence(kernel=(XID,))
    )
    play.give(ended)
    play.lose("n1")
    play.passes(5.0)
    assert [event["nodes"] for event in play.events("attempt_start")][-1] == ["n3", "n2"]


def test_a_job_that_is_requeued_for_a_class_is_not_requeued_for_ever() -> None:
    past: list[dict[str, Any]] = []
    outcomes: list[str] = []
    while outcomes[-1:] != ["no_progress"] and len(outcomes) < 9:
        play = Play(make_job(limits=RestartLimits(on={"loss": "requeue"}, max_without_progress=3)), past)
        play.run()
        failing(play, NAN)
        assert play.end is not None
        outcomes.append(play.end.outcome)
        past += play.events()
    assert outcomes == ["stopped", "stopped", "no_progress"]


def test_an_error_that_no_worker_reports_is_not_certain_to_come_again() -> None:
    play = begun(2)
    play.fail("n2", f"torch elastic: {MISSING}")
    play.passes(2.0)
    assert play.end is None and play.events("fault")[0]["class"] == "import"


def test_without_a_spare_the_node_trains_on() -> None:
    play = begun(2)
    failing(play, "RuntimeError: CUDA error: unknown error", "n2", kernel=(XID,))
    assert not play.out and len(play.events("attempt_start")) == 2


def test_a_line_that_is_only_reported_ends_nothing() -> None:
    play = begun()
    told = {"what": "log rule slow, rank 0", "detail": "step took 300 s"}
    play.give(inputs.Reported(node="n1", attempt=0, event="problem", fields=told))
    assert not play.events("fault") and play.events("problem")[0]["detail"] == "step took 300 s"


@pytest.mark.parametrize(("action", "outcome"), [(Action.STOP, "not_retried"), (Action.REQUEUE, "stopped")])
def test_a_line_of_a_worker_ends_the_attempt_as_its_rule_says(action: Action, outcome: str) -> None:
    play = begun()
    reason = "rank 0 on n1 met log rule nan: loss is nan"
    play.give(inputs.FaultReported(node="n1", attempt=0, kind=FaultKind.LOG_RULE, reason=reason, rank=0, action=action))
    play.passes(10.0)
    (fault,) = play.events("fault")
    assert (fault["kind"], fault["node"], fault["rank"]) == ("log_rule", "n1", 0)
    assert "log rule nan: loss is nan" in fault["reason"]
    assert play.end is not None and play.end.outcome == outcome


def test_a_rule_that_the_last_lines_meet_decides_although_the_worker_has_ended() -> None:
    play = begun()
    failing(play, "ValueError: 7", rule="nan", action="stop")
    assert play.end is not None and play.end.outcome == "not_retried" and "log rule nan" in play.end.reason


def test_every_fault_that_is_recorded_has_a_class_a_domain_and_advice() -> None:
    play = begun(3, train=2)
    play.lose("n2")
    play.train()
    play.fail("n1")
    for fault in play.events("fault"):
        assert fault["class"] in tuple(FaultClass) and fault["domain"] and fault["advice"]
    assert play.events("fault")[0]["class"] == "node_lost"
