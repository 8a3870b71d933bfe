"""The checkpoint agents of an attempt: one MPI world, which is replaced if it is lost while workers train."""

from __future__ import annotations

from rpds import HashTrieSet

from launcher.core import boosters
from launcher.core.commands import AdoptAgents, AskUnusable, KillAgents, Order, Purpose, Send, StartAgents
from launcher.core.faults import Fault, FaultKind
from launcher.core.frozen import replace
from launcher.core.inputs import AgentEnded, AgentLost, AgentsEnded, AgentsRejoined, Restored
from launcher.core.replay import Running
from launcher.core.requests import is_stopping
from launcher.core.state import AgentPhase, AgentWorld, Attempt
from launcher.core.turn import Turn

LOSS_WINDOW_S = 0.5  # a lost agent is judged when the loss of its node would be known
PATIENCE_S = 10.0  # agents need two; if one cannot start, the others would wait for a minute
RENEW_AFTER_S = (0.0, 5.0, 30.0)  # after the first, second and third loss within LOSSES_WITHIN_S; then not again
LOSSES_WITHIN_S = 600.0
MAY_COME_UP = (AgentPhase.COMING_UP, AgentPhase.MAKING_WAY, AgentPhase.IN_DOUBT, AgentPhase.WAITING)
LAUNCHER_S = 5.0  # after the end of all agents; srun never ends if the slurmstepd of one node was killed


def start(turn: Turn) -> None:
    """Starts the attempt's first agents."""
    turn.agents = AgentWorld()
    turn.enter_agents(AgentPhase.COMING_UP, until_s=turn.now_s + PATIENCE_S)
    _launch(turn)


def nodes(turn: Turn) -> tuple[str, ...]:
    """The nodes with agents, in the order of MPI ranks. Holders come last."""
    return (*turn.attempt.nodes, *turn.state.holders)


def concerns(turn: Turn, asked: tuple[str, ...]) -> bool:
    """Whether a question was about the current agents. Holders may have been lost since."""
    training = turn.attempt.nodes
    return asked[: len(training)] == training


def is_whole(turn: Turn) -> bool:
    """Whether no agent is known to be lost."""
    return turn.agents.phase is AgentPhase.UP


def release(turn: Turn) -> None:
    """Starts the next generation of agents, without holders."""
    turn.agents = replace(turn.agents, lost_s=turn.now_s)
    _renew(turn, AgentPhase.MAKING_WAY)


def adopt(turn: Turn, running: Running) -> None:
    """Takes over the agents that another supervisor started."""
    turn.agents = AgentWorld(generation=running.generation)
    turn.enter_agents(AgentPhase.UP if running.restored else AgentPhase.COMING_UP)
    turn.do(AdoptAgents(attempt=running.number, generation=running.generation))
    if running.agents_lost:  # that supervisor may have started the next generation; the new one is later
        reason = "none had come up in their place when the supervisor was taken over"
        _lose(turn, None, reason)


def on_ended(turn: Turn, given: AgentsEnded) -> None:
    """The agents' launcher has ended, or could not be started."""
    if given.generation != turn.agents.generation:
        return
    turn.agents = replace(turn.agents, has_launcher=False, gone=HashTrieSet(nodes(turn)))
    if given.reason and not turn.attempt.restored:
        _fault(turn, None, f"checkpoint agents not started: {given.reason}")
    else:
        _doubt(turn, None, f"not started: {given.reason}" if given.reason else "the checkpoint agents ended")


def on_lost(turn: Turn, given: AgentLost) -> None:
    """A node's agent has ended before it was released."""
    if given.generation == turn.agents.generation:
        turn.agents = replace(turn.agents, gone=turn.agents.gone.insert(given.node))
        _doubt(turn, given.node, given.reason)


def on_let_go(turn: Turn) -> None:
    """The launcher was let go while most nodes were silent. Agents that were coming up then may never be there."""
    world = turn.agents
    if world.generation and world.phase in (AgentPhase.COMING_UP, AgentPhase.MAKING_WAY) and not world.has_launcher:
        _doubt(turn, None, "not up when most nodes fell silent")


def on_agent_ended(turn: Turn, given: AgentEnded) -> None:
    """A node's agent has ended after it was released."""
    turn.agents = replace(turn.agents, gone=turn.agents.gone.insert(given.node))


def await_end(turn: Turn) -> bool:
    """Whether no agent of the training nodes is left. A launcher gets a moment to write the last of their log.

    If all nodes are only lost, they may be out of reach, and their agents at work. Then the launcher knows.
    """
    world, attempt = turn.agents, turn.attempt
    if not all(node in world.gone or node in attempt.lost for node in attempt.nodes):
        return False
    if world.has_launcher and not any(node in world.gone for node in attempt.nodes):
        return False
    if world.has_launcher and world.phase is not AgentPhase.GONE:
        turn.enter_agents(AgentPhase.GONE, until_s=turn.now_s + LAUNCHER_S)
    return not world.has_launcher or turn.due(turn.agents.until_s)


def on_restored(turn: Turn, given: Restored) -> None:
    if not turn.attempt.restored:
        turn.attempt = replace(turn.attempt, restored=True)
        if turn.agents.phase is AgentPhase.COMING_UP:
            turn.enter_agents(AgentPhase.UP)
        turn.record("restore", attempt=given.attempt, **given.fields)


def on_rejoined(turn: Turn, given: AgentsRejoined) -> None:
    """New agents have replaced lost ones. Those of the earlier supervisor may be up after all."""
    world = turn.agents
    if given.generation != world.generation or world.lost_s is None or world.gone or world.phase not in MAY_COME_UP:
        return  # already reported, or lost again
    seconds = round(turn.now_s - world.lost_s, 3)
    turn.agents = replace(world, lost_s=None)
    turn.enter_agents(AgentPhase.UP)
    turn.record("agents_back", attempt=given.attempt, step=given.step, seconds=seconds, generation=given.generation)


def take_late(turn: Turn, unusable: dict[str, str], asked: tuple[str, ...]) -> None:
    """The agents are late, and the scheduler has named nodes on which no process can be started."""
    if unusable and not turn.attempt.restored and concerns(turn, asked):
        put_unusable_out(turn, unusable)


def put_unusable_out(turn: Turn, unusable: dict[str, str]) -> None:
    """Puts out nodes of the attempt on which no agent can be started."""
    for node, reason in unusable.items():
        attempt = turn.attempt
        if node in attempt.lost or node not in nodes(turn):
            continue
        leaves = boosters.is_leaving(turn, node)
        kind = FaultKind.PREEMPTED if leaves else FaultKind.AGENT_LOST
        if node not in turn.state.holders:
            turn.attempt = replace(turn.attempt, lost=attempt.lost.insert(node))
        turn.add_fault(Fault(kind=kind, node=node, reason=f"no checkpoint agent on {node}: {reason}"))
        turn.record_faults()
        if leaves:
            turn.lose(node, reason)
        else:
            turn.put_out(node, reason)


def advance(turn: Turn, *, is_training: bool) -> None:
    """Judges a loss, asks the scheduler about late agents, and starts new agents when they are due.

    In a stop they are due at once, because without agents the stop saves nothing.

    Args:
        is_training: whether workers start or train. At the end of an attempt agents are not replaced.
    """
    if turn.agents.phase is AgentPhase.IN_DOUBT and turn.due(turn.agents.until_s):
        _judge(turn)
    if not is_training or turn.attempt.is_decisive:
        return
    world = turn.agents
    if world.phase is AgentPhase.COMING_UP and turn.due(world.until_s):
        turn.enter_agents(AgentPhase.COMING_UP)
        turn.do(AskUnusable(nodes=nodes(turn), purpose=Purpose.LATE_AGENTS, allocations=_allocations(turn)))
    elif world.phase is AgentPhase.WAITING and (is_stopping(turn.state.requests) or turn.due(world.until_s)):
        _renew(turn, AgentPhase.COMING_UP)


def ask_why_failed(turn: Turn) -> None:
    """The agents did not come up. Asks whether nodes or the scheduler are at fault."""
    turn.do(AskUnusable(nodes=nodes(turn), purpose=Purpose.AGENTS_FAILED, allocations=_allocations(turn)))


def _doubt(turn: Turn, node: str | None, reason: str) -> None:
    if turn.agents.phase in (AgentPhase.COMING_UP, AgentPhase.MAKING_WAY, AgentPhase.UP):
        turn.agents = replace(turn.agents, loss=(node, reason))
        turn.enter_agents(AgentPhase.IN_DOUBT, until_s=turn.now_s + LOSS_WINDOW_S)


def _judge(turn: Turn) -> None:
    """The loss was not that of a node.

    Before the restore it is a fault; later training continues and agents are replaced.
    """
    attempt, (node, reason) = turn.attempt, turn.agents.loss
    if attempt.is_decisive or turn.state.requests.is_cancelled:
        turn.enter_agents(AgentPhase.GIVEN_UP)
    elif attempt.restored:
        _lose(turn, node, reason)
    else:
        _fault(turn, node, f"{reason} (see {log_path(turn, attempt)})")


def _lose(turn: Turn, node: str | None, reason: str) -> None:
    """Schedules new agents. Each repeated loss delays them; after too many losses there are none."""
    world = turn.agents
    lost_s = turn.now_s if world.lost_s is None else world.lost_s
    losses_s = (*(at_s for at_s in world.losses_s if turn.now_s - at_s <= LOSSES_WITHIN_S), turn.now_s)
    turn.agents = replace(world, lost_s=lost_s, losses_s=losses_s)
    turn.record("agents_lost", attempt=turn.attempt.number, node=node, generation=world.generation, reason=reason)
    if len(losses_s) <= len(RENEW_AFTER_S):
        turn.enter_agents(AgentPhase.WAITING, until_s=turn.now_s + RENEW_AFTER_S[len(losses_s) - 1])
        return
    turn.enter_agents(AgentPhase.GIVEN_UP)
    what = "checkpoint agents are lost again and again: nothing is saved until the next attempt"
    detail = f"see {log_path(turn, turn.attempt)}"
    turn.record("problem", attempt=turn.attempt.number, what=what, detail=detail)
    turn.do(KillAgents())


def _renew(turn: Turn, phase: AgentPhase) -> None:
    """Ends the rest of the lost world, and starts another one."""
    number, generation = turn.attempt.number, turn.agents.generation + 1
    turn.do(KillAgents())
    turn.agents = replace(turn.agents, generation=generation, gone=HashTrieSet())
    turn.enter_agents(phase)
    turn.do(Send(nodes=nodes(turn), order=Order.RENEW_AGENT, attempt=number, generation=generation))
    _launch(turn)


def _launch(turn: Turn) -> None:
    attempt, state = turn.attempt, turn.state
    turn.agents = replace(turn.agents, has_launcher=True)
    start = StartAgents(
        nodes=attempt.nodes,
        attempt=attempt.number,
        generation=turn.agents.generation,
        holders=state.holders,
        allocations=_allocations(turn),
    )
    turn.do(start)


def _allocations(turn: Turn) -> dict[str, str]:
    return {node: turn.member(node).allocation for node in nodes(turn)}


def _fault(turn: Turn, node: str | None, reason: str) -> None:
    turn.enter_agents(AgentPhase.GIVEN_UP)
    turn.add_fault(Fault(kind=FaultKind.AGENT_LOST, node=node, reason=reason))


def log_path(turn: Turn, attempt: Attempt) -> str:
    return f"{turn.state.job.log_dir.format(attempt=attempt.number)}/agents.log"
