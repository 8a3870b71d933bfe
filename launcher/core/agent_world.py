"""The checkpoint agents of an attempt: one MPI world, and another in its place when it is lost while workers train."""

from __future__ import annotations

from rpds import HashTrieSet

from launcher.core import boosters
from launcher.core.commands import AdoptAgents, AskUnusable, KillAgents, Order, Purpose, Send, StartAgents
from launcher.core.faults import AGENT_LOST, PREEMPTED, Fault
from launcher.core.inputs import AgentEnded, AgentLost, AgentsEnded, AgentsRejoined, Restored
from launcher.core.replay import Running
from launcher.core.requests import is_stopping
from launcher.core.state import AgentWorld, Attempt
from launcher.core.turn import Turn

LOSS_WINDOW_S = 0.5  # an agent that goes, perhaps with its node: judged when the node's loss would be known
PATIENCE_S = 10.0  # they need two; those that wait for one that cannot start would wait for a minute
RENEW_AFTER_S = (0.0, 5.0, 30.0)  # after the first loss, the second, the third within LOSSES_WITHIN_S; then no more
LOSSES_WITHIN_S = 600.0


def start(turn: Turn) -> None:
    """Starts the attempt's first agents."""
    turn.set(agents=AgentWorld(has_launcher=True, ask_s=turn.now_s + PATIENCE_S))
    _launch(turn, generation=0)


def nodes(turn: Turn) -> tuple[str, ...]:
    """Those of its agents, in the order of their MPI ranks: holders stand last."""
    return (*turn.attempt.nodes, *turn.state.holders)


def concerns(turn: Turn, asked: tuple[str, ...]) -> bool:
    """Whether a question was about its agents. Holders may have been lost since."""
    training = turn.attempt.nodes
    return asked[: len(training)] == training


def is_whole(turn: Turn) -> bool:
    """Whether all agents are there, as far as is known."""
    world = turn.state.agents
    is_up = turn.attempt.restored and world.back == world.generation and world.lost_s is None
    return is_up and world.judge_s is None and world.due_s is None and not (world.is_judged or world.is_ended)


def release(turn: Turn) -> None:
    """Agents of the next generation take over, without holders."""
    turn.set_agents(lost_s=turn.now_s, makes_way=True)
    _renew(turn)


def adopt(turn: Turn, running: Running) -> None:
    """Takes over those that another supervisor started."""
    world = AgentWorld(
        generation=running.generation,
        back=running.back,
        lost_s=turn.now_s if running.agents_lost else None,
    )
    turn.set(agents=world)
    turn.do(AdoptAgents(attempt=running.number, generation=running.generation))
    if running.agents_lost:  # that supervisor may have started the next ones; ours come after those
        reason = "none had come up in their place when the supervisor was taken over"
        turn.record("agents_lost", attempt=running.number, generation=running.generation, reason=reason)
        _plan(turn)


def on_ended(turn: Turn, given: AgentsEnded) -> None:
    """What launched them has ended, or could not be started."""
    world = turn.state.agents
    if given.generation != world.generation:
        return
    turn.set_agents(is_ended=True)
    if given.reason and not turn.attempt.restored:
        _fault(turn, None, f"checkpoint agents not started: {given.reason}")
    else:
        reason = f"not started: {given.reason}" if given.reason else "the checkpoint agents ended"
        _judge_later(turn, None, reason)


def on_lost(turn: Turn, given: AgentLost) -> None:
    """A node's agent has gone before it was released."""
    if given.generation == turn.state.agents.generation:
        turn.set_agents(makes_way=False)
        _judge_later(turn, given.node, given.reason)


def on_agent_ended(turn: Turn, given: AgentEnded) -> None:
    """A node's agent has gone after it was released; where a launcher tells of all of them, that counts."""
    world = turn.state.agents
    if not world.has_launcher and given.node not in turn.state.holders:
        gone = world.gone.insert(given.node)
        turn.set_agents(gone=gone, is_ended=world.is_ended or len(gone) >= len(turn.attempt.nodes))


def on_restored(turn: Turn, given: Restored) -> None:
    if not turn.attempt.restored:
        turn.set_attempt(restored=True)
        turn.set_agents(ask_s=None)
        turn.record("restore", attempt=given.attempt, **given.fields)


def on_rejoined(turn: Turn, given: AgentsRejoined) -> None:
    """Others have taken the place of lost ones."""
    world = turn.state.agents
    if given.generation <= world.back or given.generation != world.generation:
        return  # reported before, or lost again
    seconds = round(turn.now_s - (world.lost_s if world.lost_s is not None else turn.now_s), 3)
    due_s = world.due_s if world.is_judged else None  # those that another supervisor started have come up after all
    turn.set_agents(back=given.generation, lost_s=None, makes_way=False, due_s=due_s)
    turn.record("agents_back", attempt=given.attempt, step=given.step, seconds=seconds, generation=given.generation)


def take_late(turn: Turn, unusable: dict[str, str], asked: tuple[str, ...]) -> None:
    """The agents were late, and the scheduler says that some nodes can be given no process."""
    if unusable and not turn.attempt.restored and concerns(turn, asked):
        put_unusable_out(turn, unusable)


def put_unusable_out(turn: Turn, unusable: dict[str, str]) -> None:
    """Nodes of the attempt on which no agent can be started."""
    for node, reason in unusable.items():
        attempt = turn.attempt
        if node in attempt.lost or node not in nodes(turn):
            continue
        leaves = boosters.is_leaving(turn, node)
        kind = PREEMPTED if leaves else AGENT_LOST
        if node not in turn.state.holders:
            turn.set_attempt(lost=attempt.lost.insert(node))
        turn.add_fault(Fault(kind=kind, node=node, reason=f"no checkpoint agent on {node}: {reason}"))
        turn.record_faults()
        if leaves:
            turn.lose(node, reason)
        else:
            turn.put_out(node, reason)


def advance(turn: Turn, *, is_training: bool) -> None:
    """Judges a loss, asks after agents that are late, starts others when they are due.

    In a stop there is no time to wait for those: without agents it saves nothing.

    Args:
        is_training: whether workers start or train; at the end of an attempt nothing is replaced.
    """
    world = turn.state.agents
    if world.judge_s is not None and turn.now_s >= world.judge_s:
        turn.set_agents(judge_s=None)
        _judge(turn)
    if not is_training or turn.attempt.is_decisive:
        return
    world = turn.state.agents
    if world.ask_s is not None and turn.now_s >= world.ask_s:
        turn.set_agents(ask_s=None)
        turn.do(AskUnusable(nodes=nodes(turn), purpose=Purpose.LATE_AGENTS, allocations=_allocations(turn)))
    if world.due_s is not None and (turn.now_s >= world.due_s or is_stopping(turn.state.requests)):
        turn.set_agents(due_s=None)
        _renew(turn)


def next_s(turn: Turn, *, is_training: bool) -> list[float | None]:
    """When advance() has something to do."""
    world = turn.state.agents
    if not is_training or turn.attempt.is_decisive:
        return [world.judge_s]
    return [world.judge_s, world.ask_s, world.due_s]


def ask_why_failed(turn: Turn) -> None:
    """They did not come up: are nodes at fault, or the scheduler?"""
    turn.do(AskUnusable(nodes=nodes(turn), purpose=Purpose.AGENTS_FAILED, allocations=_allocations(turn)))


def _judge_later(turn: Turn, node: str | None, reason: str) -> None:
    world = turn.state.agents
    if not world.is_judged and world.judge_s is None:
        turn.set_agents(judge_s=turn.now_s + LOSS_WINDOW_S, loss=(node, reason))


def _judge(turn: Turn) -> None:
    """The loss was not its node's: a fault before the restore; after it training goes on, and others are started."""
    attempt, world = turn.attempt, turn.state.agents
    if attempt.is_decisive or world.is_judged or turn.state.requests.is_cancelled:
        return
    turn.set_agents(is_judged=True)
    node, reason = world.loss
    if not attempt.restored:
        _fault(turn, node, f"{reason} (see {log_path(turn, attempt)})")
        return
    turn.set_agents(lost_s=world.lost_s if world.lost_s is not None else turn.now_s)
    turn.record("agents_lost", attempt=attempt.number, node=node, generation=world.generation, reason=reason)
    _plan(turn)


def _plan(turn: Turn) -> None:
    """When to start others: not at once where they are lost again and again, and then not any more."""
    world = turn.state.agents
    losses_s = (*(at_s for at_s in world.losses_s if turn.now_s - at_s <= LOSSES_WITHIN_S), turn.now_s)
    turn.set_agents(losses_s=losses_s)
    if len(losses_s) <= len(RENEW_AFTER_S):
        turn.set_agents(due_s=turn.now_s + RENEW_AFTER_S[len(losses_s) - 1])
        return
    what = "checkpoint agents are lost again and again: nothing is saved until the next attempt"
    detail = f"see {log_path(turn, turn.attempt)}"
    turn.record("problem", attempt=turn.attempt.number, what=what, detail=detail)
    turn.do(KillAgents())


def _renew(turn: Turn) -> None:
    """Ends what is left of the world that was lost, and starts another."""
    attempt, generation = turn.attempt, turn.state.agents.generation + 1
    turn.do(KillAgents())
    turn.set_agents(generation=generation, has_launcher=True, is_ended=False, is_judged=False, gone=HashTrieSet())
    turn.do(Send(nodes=nodes(turn), order=Order.RENEW_AGENT, attempt=attempt.number, generation=generation))
    _launch(turn, generation=generation)


def _launch(turn: Turn, *, generation: int) -> None:
    attempt, state = turn.attempt, turn.state
    start = StartAgents(
        nodes=attempt.nodes,
        attempt=attempt.number,
        generation=generation,
        holders=state.holders,
        allocations=_allocations(turn),
    )
    turn.do(start)


def _allocations(turn: Turn) -> dict[str, str]:
    return {node: turn.member(node).allocation for node in nodes(turn)}


def _fault(turn: Turn, node: str | None, reason: str) -> None:
    turn.add_fault(Fault(kind=AGENT_LOST, node=node, reason=reason))


def log_path(turn: Turn, attempt: Attempt) -> str:
    return f"{turn.state.job.log_dir.format(attempt=attempt.number)}/agents.log"
