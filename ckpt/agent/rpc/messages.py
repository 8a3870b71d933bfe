"""The catalogue of all messages between workers, runners and agents: who sends what to whom, and what comes back.

A message is a JSON object with its name under "op" (a request) or "event". `check` refuses a request that is malformed.
`int` stands for a whole number of at least 0. The agent of node rank 0 is also the leader, and sends to all nodes, its
own included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any, get_args

from ckpt.errors import AgentError


@dataclass(frozen=True, kw_only=True)
class Message:
    """One kind of message."""

    summary: str
    fields: Mapping[str, type | UnionType]
    optional: frozenset[str]  # fields that may be left out
    deadline: str  # the sender's wait, as ckpt.timeouts names it; "": none
    answer: str  # the fields of the answer


@dataclass(frozen=True)
class Way:
    """The messages from one kind of process to another, by name."""

    sender: str
    receiver: str
    messages: dict[str, Message]


def message(
    summary: str, /, *, optional: str = "", deadline: str = "", answer: str = "", **fields: type | UnionType
) -> Message:
    """A message with these fields."""
    return Message(
        summary=summary, fields=fields, optional=frozenset(optional.split()), deadline=deadline, answer=answer
    )


def check(request: Mapping[str, Any], *ways: Way) -> None:
    """Raises AgentError for a request that is on none of the ways, or is malformed."""
    op = request.get("op")
    kind = next((way.messages[op] for way in ways if isinstance(op, str) and op in way.messages), None)
    if kind is None:
        raise AgentError(f"unknown request {op!r:.40} of a {ways[0].sender}")
    for name, hint in kind.fields.items():
        if name not in request:
            if name not in kind.optional:
                raise AgentError(f"malformed {op!r}: {name} is missing")
            continue
        value, kinds = request[name], get_args(hint) or (hint,)
        if not (type(value) in kinds or (type(value) is int and float in kinds)) or (type(value) is int and value < 0):
            expected = " or ".join(_SAID[one] for one in kinds)
            raise AgentError(f"malformed {op!r}: {name} is {value!r:.40}, expected {expected}")


_SAID: dict[type, str] = {
    int: "a whole number", float: "a number", bool: "true or false", str: "a string", list: "a list",
    dict: "an object", type(None): "null",
}  # fmt: skip

# A worker to its node's agent. Hello comes first.
OF_WORKER = Way("worker", "agent", {
    "plan": message("What is restored. `step` is null where there is nothing.",
        deadline="plan_s", answer="step attempt tier world_size skipped generation pinned"),
    "foreseen": message(
        "The plan that may come while lost shards are still being made again. `step` is null where there is none.",
        deadline="plan_s", answer="step world_size"),
    "prefetch": message("What a load would read of the foreseen plan: rows of saved rank and blocks.",
        step=int, wants=list),
    "choose": message("Lets this node's workers open another step than the one that is restored.",
        step=int, deadline="plan_s", answer="step tier world_size"),
    "open": message(
        "Where a saved rank's shard can be read. No step: the one that is restored. No blocks: only the record.",
        rank=int, blocks=list | None, step=int | None, optional="step", deadline="open_s", answer="path base record"),
    "damaged": message("What was read there does not verify: take another source.",
        rank=int, path=str, step=int | None, optional="step", deadline="open_s"),
    "loaded": message("This worker has read what it wants: when all have, what was fetched for them goes."),
    "staged": message("This worker's shard of a step lies in a slot, complete.",
        slot=int, step=int, rank=int, layout=dict, flush=bool, tokens=dict, optional="flush tokens"),
    "drop_shard": message("This worker has no shard for a step, and why.", step=int, rank=int, reason=str),
    "drop_up_to": message("Up to this step the worker had no agent: no save up to there can be complete.",
        step=int, rank=int),
    "await_saves": message("Answered when none of the node's saves is in flight any more.", deadline="saves_s"),
    "rejoin": message("Where saving goes on, after the agents of `generation` were lost.",
        generation=int, deadline="plan_s", answer="step attempt generation pinned"),
    "bye": message("This worker has closed its Checkpointer."),
})  # fmt: skip

# A node's runner to the node's agent. Hello comes first.
OF_RUNNER = Way("runner", "agent", {
    "ping": message("Answered by the event `pong`."),
    "stop": message("All ranks of all nodes are to stop at one boundary. Answered by the event `stop_agreed`."),
    "shutdown": message("The agent is to end, when the workers have left or after `workers_s`.",
        workers_s=float, optional="workers_s"),
})  # fmt: skip

# An event, to all workers of the node.
TO_WORKER = Way("agent", "worker", {
    "committed": message(
        "A step survives what the scheme promises. `pinned`: it is on its way to a lower tier, and keeps its slot.",
        step=int, pinned=bool, bytes=int, seconds=float),
    "flushed": message("The flush of a step to a lower tier has ended: the step has reached the tier, or not.",
        step=int, tier=str, pinned=bool, reached=bool, bytes=int, seconds=float, optional="bytes seconds"),
    "flush_dropped": message("A step that was due in a tier does not go there: an older one is still on its way.",
        step=int, tier=str, under_way=str),
    "dropped": message("A save did not come about, and why.",
        step=int, reason=str, replicas_differ=bool, optional="replicas_differ"),
    "world_lost": message("The other agents are lost: nothing is committed until others have taken their place.",
        reason=str),
})  # fmt: skip

# An event, kept until a runner is connected.
TO_RUNNER = Way("agent", "runner", {
    "pong": message("The agent's event loop runs."),
    "stop_agreed": message("All ranks stop at this boundary.", boundary=int),
    "commit": message('A step has reached a tier, "memory" included.', tier=str, step=int, bytes=int, seconds=float),
    "problem": message(
        "Something failed, and training survives it. `failed`: the tier that a save has not reached and will not.",
        what=str, detail=str, step=int | None, failed=str | None, optional="step failed"),
    "restore_plan": message("What is restored, and from where each rank's shard comes.",
        step=int, attempt_of_step=int | None, tier=str, skipped=list, sources=dict, seconds=float),
    "rebuilt": message("A lost shard lies in this node's memory again.",
        rank=int, from_node=str, bytes=int, seconds=float, tier=str, optional="tier"),
    "rejoined": message("Agents have taken the place of lost ones, and saving goes on from this step.",
        step=int | None, generation=int, seconds=float),
})  # fmt: skip

# A node's agent to the leader.
TO_LEADER = Way("node", "leader", {
    "sealed": message("All shards of this node are sealed.",
        step=int, nbytes=int, flush=bool, token_counts=list, elapsed_s=float, deadline="answer_s"),
    "ask_drop": message("This node cannot bring its shards of a step, and why.",
        step=int, reason=str, deadline="answer_s"),
    "ask_drop_up_to": message("A worker of this node had no agent up to this step.", step=int, deadline="answer_s"),
    "find_chosen": message("Look for a step that a script has chosen.", step=int, deadline="restore_s", answer="plan"),
    "ask_stop": message("A runner of this node asks for a stop.", deadline="answer_s"),
    "unused": message("No process of the program is connected to this agent any more.",
        deadline="leave_s", answer="leave"),
})  # fmt: skip

# The leader to a node's agent.
TO_NODE = Way("leader", "node", {
    "protect": message("All nodes have sealed: make the redundancy.", step=int, deadline="protect_s"),
    "commit_save": message("All nodes have protected: older steps may go. `tiers`: where the step goes from here.",
        step=int, tiers=list, nbytes=int, seconds=float, deadline="answer_s"),
    "drop": message("The save does not come about, and why.",
        step=int, reason=str, replicas_differ=bool, deadline="answer_s"),
    "verify_parity": message("Whether the node's parity verifies.",
        save=dict, over=dict, index=int, deadline="verify_s", answer="good"),
    "rebuild": message("Make a lost shard again from parity.",
        rank=int, save=dict, over=dict, shard_nodes=list, parity_nodes=list, headers=list, deadline="restore_s",
        answer="damaged"),
    "inventory": message("What the node holds in memory and on its disk.",
        deadline="answer_s", answer="shards parity nvme nvme_last_s"),
    "verify": message("The ranks of which the node has no shard that verifies.",
        save=dict, ranks=list, deadline="verify_s", answer="unverified"),
    "verify_stored": message("Read some ranks' shards in a tier that all nodes see, into memory where there is room.",
        tier=str, save=dict, ranks=list, deadline="restore_s", answer="fetched damaged"),
    "foresee": message("The plan that may come: workers may have what survives of it fetched.",
        plan=dict, headers=list, deadline="restore_s"),
    "withdraw": message("The foreseen plan does not come.", deadline="restore_s"),
    "restore": message("The plan that all nodes take up. `tiers`: where the step is flushed to.",
        plan=dict, same_world=bool, tiers=list, deadline="restore_s", answer="pinned_bytes taken"),
    "no_restore": message("There is no plan, and why.", reason=str, deadline="restore_s"),
    "protect_newest": message("Make the redundancy that the restored step lacks.", deadline="restore_s", answer="made"),
    "protect_moved": message("The same where its shards lie on other nodes than their ranks run on.",
        placement=list, alone=list, deadline="restore_s", answer="made"),
    "quarantine": message("Never try this step again: its bytes are damaged here where `reason` says so.",
        save=dict, reason=str, deadline="restore_s"),
    "holds": message("What the node holds of one step.", step=int, deadline="answer_s", answer="shards"),
    "rejoin_verify": message("Which of some ranks have no shard of a save in the node's memory that verifies.",
        save=dict, ranks=list, deadline="verify_s", answer="unverified"),
    "rejoin_protect": message("Take a save up as the newest, and make the redundancy that it lacks.",
        save=dict | None, tiers=list, placement=list | None, alone=list, deadline="restore_s",
        answer="made boundary pinned_bytes"),
    "rejoin_done": message("Let the workers in.", boundary=int, deadline="answer_s"),
    "gate": message("Let workers wait at their next boundary, and say how far they are.",
        deadline="answer_s", answer="boundary"),
    "stop_at": message("The boundary at which all ranks stop.", boundary=int, deadline="answer_s"),
    "flush_write": message("Write this node's shards of a committed step to a tier.",
        tier=str, step=int, deadline="flush_s", answer="places"),
    "flush_commit": message("All nodes have written to their disks: commit there.",
        tier=str, step=int, deadline="flush_s"),
    "flush_list": message("The saves on the node's disk.", tier=str, deadline="flush_s", answer="saves"),
    "flush_retain": message("Remove all but the newest `keep` complete saves from the node's disk.",
        tier=str, keep=int, complete=list, deadline="flush_s"),
    "flush_done": message("The flush of a step to a tier has ended: its slots are free.",
        tier=str, step=int, reached=bool, nbytes=int, seconds=float, deadline="answer_s"),
})  # fmt: skip

# One node's agent to another's, whoever leads.
BETWEEN = Way("node", "node", {
    "record": message("The record of a shard that the receiver holds.",
        save=dict, rank=int, deadline="answer_s", answer="record"),
    "shard_bytes": message("The blocks of such a shard (null: all), pushed under `tag`.",
        save=dict, rank=int, blocks=list | None, tag=int, deadline="answer_s"),
    "parts": message("Byte ranges that the receiver holds, pushed to `target`, who makes a sum of them.",
        addend=list, save=dict, over=dict, nbytes=int, target=int, tag=int, deadline="answer_s"),
    "sum": message("A sum that the receiver makes of others' ranges and its own, pushed to `target`.",
        own=list, others=list, save=dict, over=dict, nbytes=int, target=int, tag=int, deadline="answer_s"),
    "row": message("A further row of parity, which the receiver makes together with its own.",
        save=dict, over=dict, row=int, tag=int, deadline="answer_s", answer="comes"),
    "lengths": message("The lengths of the shards that a member puts under parity.",
        save=dict, ranks=list, deadline="answer_s", answer="lengths has_parity"),
    "header": message("The record of a lost shard, of which the receiver's parity keeps a copy.",
        save=dict, rank=int, deadline="answer_s", answer="header"),
    "verify_again": message("A worker found a shard of the receiver's damaged.",
        save=dict, rank=int, deadline="verify_s"),
})  # fmt: skip

WAYS = (OF_WORKER, OF_RUNNER, TO_WORKER, TO_RUNNER, TO_LEADER, TO_NODE, BETWEEN)


def deadline_of(op: str) -> str:
    """The name of the deadline of a call between agents."""
    return next(way.messages[op].deadline for way in (TO_NODE, BETWEEN, TO_LEADER) if op in way.messages)
