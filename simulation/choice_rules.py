"""Which nodes an attempt has, how many, and who serves what they restore; when a job changes its size.

Nodes that are warm come before cold ones, and spares of the base last. A rule looks at the states before and after the
decision, and never asks the core's own functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from launcher.core import commands as do
from launcher.core.faults import LOSSES_S
from launcher.core.inputs import AgentsRejoined
from launcher.core.members import Phase, is_usable
from launcher.core.requests import may_be_asked
from launcher.core.state import AgentPhase, AttemptPhase, Booster, BoosterPhase, Sigterm, Stage, State
from simulation.violation import Violation

_GROWS = "more nodes are there"


def check_choice(before: State, message: Any, after: State, todo: tuple[do.Command, ...], now_s: float) -> None:
    """Checks a decision by what it says of nodes and sizes.

    Raises:
        Violation: another choice was due.
    """
    left = {command.fields["node"] for command in todo if _is_of(command, "node_leaving")}
    out = {command.fields["node"] for command in todo if _is_of(command, "node_out")}
    for index, command in enumerate(todo):
        if type(command) is not do.Record:
            continue
        if command.event == "attempt_start":
            later = {each.fields["node"] for each in todo[index:] if _is_of(each, "node_leaving")}
            for wrong in _of_start(before, after, command.fields, later - out, now_s):
                raise Violation("an attempt has the best nodes", f"{wrong}: {dict(command.fields)}")
        elif command.event == "resize" and command.fields["reason"] == _GROWS:
            for wrong in _of_growth(after, command.fields):
                raise Violation("a job grows when it can", f"{wrong}: {dict(command.fields)}")
        elif command.event == "holders_released" and type(message) is not AgentsRejoined:
            for wrong in _of_release(before, after, left, now_s):
                raise Violation("holders are let go in time", f"{wrong}: {dict(command.fields)}")
    if after.marks.table and after.stage is Stage.ATTEMPT and (stays := _stays_needlessly(after)):
        raise Violation("a node is left while a spare is free", stays)
    if after.stage is Stage.GATHERING:
        _check_wait(after, now_s)
    elif after.holders and after.stage is Stage.ATTEMPT and _is_needless(after):
        raise Violation("holders are let go in time", f"{after.holders}, and a newer step is committed")


def _is_of(command: do.Command, event: str) -> bool:
    return type(command) is do.Record and command.event == event


# The nodes of an attempt


def _of_start(before: State, after: State, fields: Any, left: set[str], now_s: float) -> Iterator[str]:
    """Compares the choice with the states. `left` are nodes that leave after it, in the same decision."""
    job = after.job
    table = dict(after.members.table.items()) | {node: before.members[node] for node in left if node in before.members}
    nodes, was = tuple(fields["nodes"]), before.positions
    extra = [node for booster in after.boosters for node in booster.nodes]
    extra += [node for node in left if node in table and node not in extra]
    usable = [node for node in (*job.nodes, *extra) if is_usable(table[node])]
    cold = [node for node in extra if not table[node].is_warm and node not in was]
    good = [node for node in usable if node not in cold]
    is_short = len(good) < job.sizes[-1]
    if not is_short and (early := [node for node in nodes if node in cold]):
        yield f"{early} are not warm yet, and {good} are enough"
    there = usable if is_short else good
    most = min(job.base_size + sum(node in extra for node in there), _wanted(after), len(there))
    size = next((size for size in job.sizes if size <= most), 0)
    if len(nodes) != size:
        yield f"{size} nodes may train"
    idle = [node for node in there if node not in nodes]
    spares = [node for node in idle if node not in after.history.leaving]
    if sorted(fields["spares"]) != sorted(spares):
        yield f"its spares are {spares}"
    suspects = before.history.gains.suspects
    unwanted = {*suspects, *(node for node, _ in before.marks.table), *before.history.leaving}
    fit = [node for node in idle if node not in unwanted]
    last = [node for node in nodes if node in job.nodes[job.base_size :] and node not in was]
    if last and (better := [node for node in fit if node not in (*job.nodes[job.base_size :], *was)]):
        yield f"{last} are spares, and {better} are idle"
    if fit and (blamed := [node for node in nodes if node in unwanted]):
        yield f"{blamed} are to be left, or attempts failed on them, and {fit} are idle"
    yield from _of_holders(before, after, fields, nodes)
    is_smaller = before.fault is not None and len(nodes) < len(was)
    if is_smaller and before.stage is Stage.GATHERING and any(_is_joining(after, each) for each in after.boosters):
        until_s = before.stage_s + job.elastic.faulty_scale_down_timeout_s
        if now_s < until_s - 0.001:
            yield "a booster is about to join"


def _of_holders(before: State, after: State, fields: Any, nodes: tuple[str, ...]) -> Iterator[str]:
    """Nodes that trained before, are connected and do not train now serve what they hold."""
    suspects, table = before.history.gains.suspects, after.members.table
    expected = {
        node
        for node in before.history.trained  # without a node that has come with a new allocation: its memory is empty
        if node in after.history.trained and node in table and node not in nodes and node not in suspects
        and table[node].phase in (Phase.READY, Phase.LEAVING)
    }  # fmt: skip
    held = set(fields.get("holders") or ())
    if held != (expected if after.job.has_checkpoint else set()):
        yield f"what is restored is on {sorted(expected)} as well"


def _wanted(state: State) -> int:
    job = state.job
    wanted = state.history.scale or (job.base_size if job.is_local else job.sizes[0])
    return min(wanted, job.base_size) if state.time_limit.is_ending else wanted


def _is_joining(state: State, booster: Booster) -> bool:
    """Whether more of a booster's nodes are about to be ready."""
    members = [state.members[node] for node in booster.nodes]
    if booster.phase is not BoosterPhase.RUNNING or any(
        member.phase in (Phase.OUT, Phase.RETURNING) for member in members
    ):
        return False
    return len(members) < state.job.booster_nodes or any(not member.is_warm for member in members)


def _check_wait(state: State, now_s: float) -> None:
    """Enough nodes are there: after a fault a booster that is about to join is awaited, or nodes lost together."""
    members = state.members
    if members.joining_count or members.usable < state.job.sizes[-1] or state.requests.sigterm is Sigterm.ASKED:
        return
    are_several_lost = sum(node in members and members[node].is_lost for node in state.history.trained) > 1
    if are_several_lost and state.lost_s is not None and now_s < state.lost_s + LOSSES_S:
        return
    if state.fault is None or not any(_is_joining(state, each) for each in state.boosters):
        raise Violation("nothing waits for nothing", f"all nodes are there, and no booster is about to join: {members}")


# Changes of size


def _stays_needlessly(state: State) -> str:
    """Marked nodes that train while other nodes could; "" if the attempt cannot stop without loss, or must not."""
    attempt = state.attempt
    if attempt is None or attempt.phase is not AttemptPhase.TRAINING or attempt.is_decisive or state.holders:
        return ""
    if state.requests.stop is not None or may_be_asked(state.requests) or not _are_agents_whole(state):
        return ""
    if not (state.job.has_checkpoint and (attempt.first_step_seen or attempt.committed_step)):
        return ""
    unwanted = {node for node, _ in state.marks.table}
    marked = unwanted.intersection(attempt.nodes)
    avoided = {*unwanted, *state.history.leaving, *state.history.gains.suspects}
    base = [node for node in state.job.nodes if node in state.members and node not in attempt.nodes]
    free = [node for node in base if node not in avoided and state.members[node].phase is Phase.READY]
    blamed = avoided.intersection(attempt.nodes) - unwanted  # the spare may be for one of these
    ready = [member for member in state.members.table.values() if member.phase is Phase.READY]
    are_warm = all(member.is_warm for member in ready)  # a booster's node may be among the best
    of_boosters = sum(each.allocation != "job" and is_usable(each) for each in state.members.table.values())
    may_be = state.job.base_size + of_boosters  # it would be smaller afterwards, if it has lost its boosters
    is_full = min(_wanted(state), state.job.base_size) <= len(attempt.nodes) <= may_be
    if marked and free and are_warm and is_full and not blamed:
        return f"{sorted(marked)} train, and {free} are free"
    return ""


def _are_agents_whole(state: State) -> bool:
    """Whether an attempt can save: its agents are there, and no loss is known."""
    return state.agents.phase is AgentPhase.UP


def _of_growth(after: State, fields: Any) -> Iterator[str]:
    if fields["to"] <= fields["size"]:
        yield "it does not grow"
    if after.job.has_checkpoint and not _are_agents_whole(after):
        yield f"it cannot save: {after.agents}"
    if after.holders:
        yield f"it still needs {after.holders}"


def _of_release(before: State, after: State, left: set[str], now_s: float) -> Iterator[str]:
    attempt = after.attempt
    assert attempt is not None
    if not _are_agents_whole(before):
        yield f"the attempt cannot save: {before.agents}"
    if attempt.committed_step > 0:
        return
    due_s = attempt.phase_s + after.job.elastic.graceful_shutdown_timeout_s
    leaving = {node for node, member in before.members.table.items() if member.phase is Phase.LEAVING} | left
    if leaving.isdisjoint(before.holders) or now_s < due_s:
        yield "nothing is committed that does not need them"


def _is_needless(state: State) -> bool:
    attempt = state.attempt
    if attempt is None or attempt.phase is not AttemptPhase.TRAINING or attempt.is_decisive:
        return False
    is_asked = may_be_asked(state.requests) or state.requests.stop is not None
    return attempt.committed_step > 0 and not is_asked and _are_agents_whole(state)
