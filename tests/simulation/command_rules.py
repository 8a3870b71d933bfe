"""A decision does what it records, and asks for the answer that its stage waits for."""

from __future__ import annotations

from launcher.core import commands as do
from launcher.core.attempt import RETURN_S
from launcher.core.state import AttemptPhase, RequeuePhase, Stage, State
from simulation.violation import Violation

_ANSWERS: dict[Stage, type] = {
    Stage.ASKING: do.AskUnusable,
    Stage.PROBING: do.ProbeFolder,
    Stage.LOOKING: do.LookAtOwnCheckpoints,
    Stage.SCHEDULER: do.AskUnusable,
    Stage.CONFIRMING: do.AskWhyTerminated,
    Stage.CLOSING: do.ProbeFolder,
    Stage.REQUEUEING: do.Requeue,
}
_STARTED_AGAIN = "runners are started again: "
# Events, and the commands that they stand for.
_DONE: dict[str, tuple[type, ...]] = {
    "attempt_start": (do.Settle,),
    "resize": (do.Settle,),
    "holders_released": (do.KillAgents, do.Send, do.StartAgents),
}


def check_commands(before: State, after: State, todo: tuple[do.Command, ...]) -> None:
    """Checks the commands of a decision.

    Raises:
        Violation: one is missing.
    """
    if not todo and before.stage is after.stage and before.again_s == after.again_s:
        return
    kinds = {type(command) for command in todo}
    _check_question(before, after, kinds)
    for command in todo:
        if type(command) is do.Record:
            _check_done(command, todo, kinds)
    attempt = after.attempt
    is_return = after.stage is Stage.ATTEMPT and attempt is not None and attempt.phase is AttemptPhase.RETURNING
    if is_return and attempt is not None and not after.is_isolated:
        due_s = attempt.phase_s + RETURN_S
        if after.timer_s is None or after.timer_s > due_s:
            raise Violation("no lost timer", f"the runners' return is due at {due_s}, the timer at {after.timer_s}")


def _check_question(before: State, after: State, kinds: set[type]) -> None:
    """A stage begins with its question, and asks again when it is time."""
    question = _ANSWERS.get(after.stage)
    if question is None or question in kinds:
        return
    if after.stage is not before.stage:
        is_asked = after.stage is Stage.REQUEUEING and before.requeue is RequeuePhase.ASKED
        if not is_asked:
            raise Violation("the stage tells what is waited for", f"{after.stage}, and nobody asks")
    elif after.again_s is None and before.again_s is not None and after.blocked:
        raise Violation("the stage tells what is waited for", f"{after.stage}, and nobody asks again")


def _check_done(record: do.Record, todo: tuple[do.Command, ...], kinds: set[type]) -> None:
    missing = [kind.__name__ for kind in _DONE.get(record.event, ()) if kind not in kinds]
    if missing:
        raise Violation("what is recorded is done", f"{dict(record.fields)} without {missing}")
    if record.event != "problem" or not record.fields["what"].startswith(_STARTED_AGAIN):
        return
    started = {node for command in todo if type(command) is do.StartRunners for node in command.nodes}
    left = {command.node for command in todo if type(command) is do.Leave}
    if not started or started != left or do.ReleaseRunners not in kinds:
        raise Violation("what is recorded is done", f"{record.fields['what']}: {sorted(started)}, ended {sorted(left)}")
