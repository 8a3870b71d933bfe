"""The start of the job's runners, repeated if the scheduler has ended it because of one node.

All runners are one Slurm step. If a node dies or freezes between the check of the nodes and the start of the step,
Slurm ends the step on all nodes. Nothing has trained yet, so the other nodes' runners are simply started again. Once an
attempt begins, missing runners are not waited for: the launcher is ended first, so that it cannot end runners whose
workers run.
"""

from __future__ import annotations

from launcher.core.commands import AskLaunch, Leave, ReleaseRunners, StartRunners
from launcher.core.frozen import replace
from launcher.core.inputs import LaunchEnded, NodeLost
from launcher.core.members import Phase, is_usable
from launcher.core.state import Launch
from launcher.core.turn import Turn

BLIND_TRIES = 3  # if nobody reports the failed node
MISSING_S = 120.0  # for a runner that is missing when an attempt begins


def begin(turn: Turn) -> None:
    """Starts a runner on every node that should have one."""
    nodes = joining(turn)
    if nodes:
        turn.launch = replace(turn.launch, is_under_way=True)
        turn.do(StartRunners(nodes=nodes))


def joining(turn: Turn) -> tuple[str, ...]:
    """The nodes whose runners are still missing."""
    members = turn.state.members
    if not members.joining_count:
        return ()
    return tuple(node for node in turn.state.job.nodes if members[node].phase is Phase.JOINING)


def on_node_lost(turn: Turn, given: NodeLost) -> bool:
    """Whether a lost runner may be lost with its launcher, which says nothing about its node."""
    launch, member = turn.state.launch, turn.member(given.node)
    if not launch.is_under_way or member.phase in (Phase.OUT, Phase.RETURNING):
        return False
    if member.phase is Phase.JOINING:  # it was started again since
        return True
    if launch.failed:
        turn.put_member(given.node, replace(turn.member(given.node), phase=Phase.JOINING))
        turn.launch = replace(turn.launch, has_ended=True)
    else:
        turn.put_member(given.node, replace(turn.member(given.node), phase=Phase.JOINING))
        turn.launch = replace(turn.launch, doubtful=(*launch.doubtful, (given.node, given.reason, given.detect_s)))
        turn.do(AskLaunch())
    return True


def on_ended(turn: Turn, given: LaunchEnded) -> None:
    """The launcher of the runners has ended, or has reported the nodes that it could not reach."""
    launch = turn.state.launch
    if not launch.is_under_way:
        return
    out = turn.state.members.out()
    failed = {node: reason for node, reason in given.failed.items() if node not in out}
    has_ended = launch.has_ended or given.has_ended or bool(failed)
    turn.launch = replace(turn.launch, failed={**launch.failed, **failed}, has_ended=has_ended, doubtful=())
    if not has_ended:
        for node, reason, _ in launch.doubtful:
            turn.lose(node, reason)


def advance(turn: Turn) -> None:
    """Starts the runners again if their launcher has ended while nodes are gathered."""
    launch = turn.state.launch
    if not launch.is_under_way or not launch.has_ended or launch.doubtful:
        return
    failed = {node: reason for node, reason in launch.failed.items() if node not in turn.state.members.out()}
    turn.state = replace(
        turn.state, launch=replace(launch, has_ended=False, failed={}, blind=launch.blind + (not failed))
    )
    for node, reason in failed.items():
        turn.put_out(node, reason)
    if failed:  # all other runners are being ended with the launcher
        for node in turn.state.job.nodes:
            if is_usable(turn.member(node)):
                turn.put_member(node, replace(turn.member(node), phase=Phase.JOINING))
    missing = joining(turn)
    if not missing or turn.state.launch.blind > BLIND_TRIES:
        return
    for node in missing:
        turn.do(Leave(node=node))
    turn.do(ReleaseRunners())
    if turn.state.members.usable + len(missing) < turn.state.job.sizes[-1]:
        return
    why = f"no process could be started on {', '.join(failed)}" if failed else "their start has failed"
    turn.record("problem", what=f"runners are started again: {why}", detail="see log/srun-runners.log")
    turn.do(StartRunners(nodes=missing))


def end(turn: Turn) -> None:
    """Ends the launch: connected runners stay, and missing ones may connect within another MISSING_S."""
    launch = turn.state.launch
    late_s = turn.now_s + MISSING_S if launch.is_under_way and turn.state.members.joining_count else launch.late_s
    turn.state = replace(turn.state, launch=Launch(late_s=late_s))
    turn.do(ReleaseRunners())


def give_up_late(turn: Turn) -> None:
    """Puts out the nodes whose runners have not connected within MISSING_S."""
    if not turn.due(turn.state.launch.late_s):
        return
    turn.launch = replace(turn.launch, late_s=None)
    for node in joining(turn):
        turn.put_out(node, f"its runner did not start; see log/runner-{node}.log and log/srun-runners.log")
