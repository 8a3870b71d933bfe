"""The catalogue of all messages between workers, runners and agents: sender, receiver, fields, deadline and answer.

A message is a JSON object with its name under "op" (a request) or "event". `check` refuses a malformed request. `int`
means a whole number of at least 0. The agent of node rank 0 is also the leader. It calls all nodes, its own included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ckpt.agent.shards.held import HeldShard
from ckpt.agent.shards.plan import Placement, Plan
from ckpt.errors import AgentError
from ckpt.format.line import Line
from ckpt.format.shard_record import SaveId, ShardRecord
from ckpt.redundancy.parity_record import ParitySet
from holdfast.base import messages as base
from holdfast.base.messages import MalformedMessage, Way, fields, message

F = TypeVar("F", bound=Callable[..., Any])


def check(request: Mapping[str, Any], *ways: Way) -> dict[str, Any]:
    """The fields of a request, with objects of their types. Fields that are not in the catalogue are left out.

    Raises:
        AgentError: the request is on none of the ways, or is malformed.
        CorruptError: a field is not the JSON of its type.
    """
    try:
        return base.check(request, *ways)
    except MalformedMessage as error:
        raise AgentError(str(error)) from None


def check_answer(op: str, answer: Mapping[str, Any], *ways: Way) -> dict[str, Any]:
    """The fields of the answer to a request, with objects of their types. Raises as `check`, for unknown fields too."""
    try:
        return base.check_answer(op, answer, *ways)
    except MalformedMessage as error:
        raise AgentError(str(error)) from None


def event(name: str, fields: Mapping[str, Any], way: Way) -> dict[str, Any]:
    """An event as it is sent. Raises MalformedMessage if it is not as in the catalogue."""
    sent = base.plain(fields)
    base.check_whole({"op": name, **sent}, way)
    return {"event": name, **sent}


def received(message: Mapping[str, Any], way: Way) -> dict[str, Any]:
    """An event as it was received, with objects of its fields' types. Raises as `check`."""
    name = message["event"]
    return {"event": name, **check({**message, "op": name}, way)}


def serves(op: str) -> Callable[[F], F]:
    """Marks the method that handles the calls of `op` from other agents: see `Peers.serve`.

    Its arguments are the sender's node rank and the message's fields; its result is the answer.
    """

    def mark(method: F) -> F:
        method.serves = op  # type: ignore[attr-defined]
        return method

    return mark


# From a worker to its node's agent. The first message is "hello".
OF_WORKER = Way("worker", "agent", {
    "plan": message("Requests the restore plan. `step` is null if there is nothing to restore.",
        deadline="plan_s", answer=fields(
            save=SaveId | None, tier=str, world_size=int, skipped=list, generation=int, pinned=bool, next_line=list,
            is_head=bool, committed=SaveId | None, notice=str)),
    "foreseen": message(
        "Requests the provisional plan, which exists while lost shards are being rebuilt. No plan: `step` is null.",
        deadline="plan_s", answer=fields(step=int | None, world_size=int)),
    "prefetch": message("The parts of the provisional plan that a load would read: rows of saved rank and blocks.",
        step=int, wants=list),
    "choose": message("Lets this node's workers open another step than the restored one.",
        step=int, deadline="plan_s", answer=fields(save=SaveId | None, tier=str, world_size=int)),
    "best": message("Requests the best step by the metric of `keep_best`.", deadline="plan_s", answer=fields(step=int)),
    "open": message(
        "Requests a readable location of a saved rank's shard. `whole`: all blocks are there already. No step: the "
        "restored one. No blocks: only the record.",
        rank=int, blocks=list | None, step=int | None, optional="step", deadline="open_s",
        answer=fields(path=str, base=int, record=ShardRecord, whole=bool)),
    "damaged": message("Bytes at this location do not verify. The next `open` gives another source.",
        rank=int, path=str, step=int | None, optional="step", deadline="open_s"),
    "load_ended": message(
        "This worker has finished its load of `step`; no step: what it has read. After the node's last one, fetched "
        "shards are removed.",
        step=int | None, seconds=float, optional="step seconds"),
    "staged": message(
        "This worker has staged its shard of a step into a slot. `descent`: the line of the save. `metrics`: those "
        "that the script has given. `stall_s`: for how long saves have held its steps up since the last message.",
        slot=int, step=int, rank=int, layout=dict, descent=Line, flush=bool, tokens=dict, metrics=dict, stall_s=float,
        optional="flush tokens metrics stall_s"),
    "drop_shard": message("This worker has no shard for a step, with the reason. `descent`: the line of the save.",
        step=int, rank=int, descent=Line, reason=str),
    "drop_up_to": message(
        "This worker had no agent up to this step of a line, so no save up to it can become complete.",
        step=int, rank=int, descent=Line),
    "await_saves": message(
        "Answered once the outcome of all saves of this node is known. `closing`: this worker is about to end; in a "
        "stop it waits for the lower tiers no longer than the stop allows.",
        closing=bool, optional="closing", deadline="saves_s"),
    "rejoin": message("Requests the save to continue from, after the agents of `generation` were lost.",
        generation=int, deadline="plan_s", answer=fields(save=SaveId | None, generation=int, pinned=bool)),
    "bye": message("This worker has closed its Checkpointer."),
})  # fmt: skip

# From a node's runner to the node's agent. The first message is "hello".
OF_RUNNER = Way("runner", "agent", {
    "ping": message("Answered by the event `pong`."),
    "stop": message(
        "Requests that all ranks of all nodes stop at one boundary. Answered by the event `stop_agreed`. `lower_s`: "
        "for how long workers that close wait for the lower tiers; without it, until their own deadline.",
        lower_s=float, optional="lower_s"),
    "shutdown": message(
        "Ends the agent once the workers have left, but at the latest after `workers_s`. `finish`: training has ended, "
        "so the newest step is first written to all lower tiers.",
        workers_s=float, finish=bool, optional="workers_s finish"),
})  # fmt: skip

# Events, to all workers of the node.
TO_WORKER = Way("agent", "worker", {
    "committed": message(
        "A step is committed. `pinned`: it is being flushed to a lower tier, and its slot stays in use.",
        save=SaveId, step=int, pinned=bool, bytes=int, seconds=float),
    "flushed": message("The flush of a step to a lower tier has ended. `reached`: with success.",
        step=int, tier=str, pinned=bool, reached=bool, bytes=int, seconds=float, optional="bytes seconds"),
    "flush_dropped": message("A step that was due in a tier is not flushed, because an older one is under way.",
        step=int, tier=str, under_way=str),
    "dropped": message("A save was dropped, with the reason.",
        step=int, reason=str, replicas_differ=bool, optional="replicas_differ"),
    "world_lost": message("The other agents are lost. Nothing is committed until others have replaced them.",
        reason=str),
})  # fmt: skip

# Events, kept until a runner is connected.
TO_RUNNER = Way("agent", "runner", {
    "pong": message("The agent's event loop runs."),
    "stop_agreed": message("All ranks stop at this boundary.", boundary=int),
    "commit": message(
        'A step has reached a tier, "memory" included. `stall_s`: for how long saves have held steps up on the slowest '
        "rank since the commit before it; only of memory.",
        tier=str, step=int, bytes=int, seconds=float, stall_s=float, optional="stall_s"),
    "problem": message(
        "A failure that does not stop training, or a waste. `failed`: the tier that the save will not reach.",
        what=str, detail=str, step=int | None, failed=str | None, optional="step failed"),
    "restore_plan": message("The step that is restored, and the ranks of each source of shards.",
        step=int, attempt_of_step=int | None, tier=str, namespace=str, skipped=list, left=list, sources=dict,
        seconds=float),
    "restore_refused": message("Lower tiers have steps, and none can be restored. Training may not begin.", reason=str),
    "loaded": message("All ranks of the node have loaded this step.",
        step=int, tier=str, namespace=str, newest=int | None, whose=str, seconds=float, optional="newest whose"),
    "line": message(
        "The first save of a line that does not continue the newest step of the namespace. `origin`: the step that it "
        "continues; null: it continues none.",
        step=int, origin=int | None, newest=int | None, line=str),
    "cadence": message(
        "With `every_steps: auto`: all ranks save every `every_steps` steps from now on (memory), or a tier takes a "
        "save every `every_s`. The other fields are what this was computed from.",
        tier=str, every_steps=int | None, every_s=float, step_s=float, stall_s=float, mtbf_s=float,
        optional="every_steps"),
    "finishing": message("Training has ended, and the newest step is written to these tiers.", step=int, tiers=list),
    "rebuilt": message("A lost shard is in this node's memory again.",
        rank=int, from_node=str, bytes=int, seconds=float, tier=str, optional="tier"),
    "rejoined": message("Agents have replaced lost ones, and saving continues from this step.",
        step=int | None, generation=int, seconds=float),
})  # fmt: skip

# From a node's agent to the leader.
TO_LEADER = Way("node", "leader", {
    "sealed": message(
        "All shards of this node are sealed. `given`: the metrics, as rows of name, rank and value. `stall_s`: of its "
        "slowest rank.",
        step=int, nbytes=int, flush=bool, token_counts=list, lines=list[Line], given=list, stall_s=float,
        elapsed_s=float, deadline="answer_s"),
    "ask_drop": message("This node cannot complete its part of a save of a line, with the reason.",
        step=int, descent=Line, reason=str, deadline="answer_s"),
    "ask_drop_up_to": message("A worker of this node had no agent up to this step of a line.",
        step=int, descent=Line, deadline="answer_s"),
    "find_chosen": message("Requests a plan for a step that a script has chosen.",
        step=int, deadline="restore_s", answer=fields(plan=Plan)),
    "find_best": message("Requests the best step by the metric of `keep_best`.",
        deadline="restore_s", answer=fields(step=int)),
    "ask_finish": message("Training has ended. Answered once the newest step is in all lower tiers.",
        deadline="flush_s"),
    "ask_stop": message("A runner of this node requests a stop.", deadline="answer_s"),
    "unused": message("No process of the program is connected to this agent any more.",
        deadline="leave_s", answer=fields(leave=bool)),
})  # fmt: skip

# From the leader to a node's agent.
TO_NODE = Way("leader", "node", {
    "publish": message("Writes the records of this node's shards of a save, once all nodes have sealed it.",
        save=SaveId, metrics=dict, deadline="answer_s"),
    "protect": message("Makes this node's redundancy of a save, once all nodes have published it.",
        save=SaveId, deadline="protect_s"),
    "commit_save": message("Commits a save that all nodes have protected. `tiers`: where it is flushed to.",
        save=SaveId, tiers=list, nbytes=int, seconds=float, stall_s=float, deadline="answer_s"),
    "large_tensors": message(
        "Requests the large tensors of a committed save that all ranks of the node store: rows of key, bytes and a "
        "digest. Null: the shards are gone.",
        save=SaveId, deadline="answer_s", answer=fields(rows=list | None)),
    "drop": message("Drops a save of a line, with the reason.",
        step=int, descent=Line, reason=str, replicas_differ=bool, deadline="answer_s"),
    "verify_parity": message("Verifies the node's parity.",
        save=SaveId, over=ParitySet, index=int, deadline="verify_s", answer=fields(good=bool)),
    "rebuild": message("Rebuilds a lost shard from parity. The answer has a field only if the result does not verify.",
        rank=int, save=SaveId, over=ParitySet, shard_nodes=list, parity_nodes=list, headers=list,
        deadline="restore_s", answer=fields("damaged", damaged=str)),
    "inventory": message("Requests the shards and the parity in the node's memory and on its disk.",
        deadline="answer_s", answer=fields(shards=list[HeldShard], parity=list, nvme_last_s=float)),
    "verify": message("Verifies the shards of some ranks. The answer has the ranks without a shard that verifies.",
        save=SaveId, ranks=list, deadline="verify_s", answer=fields(unverified=list)),
    "verify_stored": message("Reads some ranks' shards in a shared tier, into memory if there is room.",
        tier=str, save=SaveId, ranks=list, deadline="restore_s",
        answer=fields("damaged missing", fetched=list, damaged=str, missing=str)),
    "foresee": message("The provisional plan. Workers may prefetch surviving shards.",
        plan=Plan, headers=list, deadline="restore_s"),
    "withdraw": message("The provisional plan is void.", deadline="restore_s"),
    "restore": message("The plan that all nodes carry out. `tiers`: where the step is flushed to.",
        plan=Plan, same_world=bool, tiers=list, deadline="restore_s", answer=fields(pinned_bytes=int, taken=list)),
    "no_restore": message("There is no plan, with the reason.", reason=str, deadline="restore_s"),
    "protect_restored": message(
        "Makes the redundancy that the restored step lacks. `placement`: if its shards are not on their ranks' nodes.",
        placement=Placement | None, alone=list | None, deadline="restore_s", answer=fields(made=int)),
    "quarantine": message("Quarantines a step that was passed over as damaged, for `reason` on this node.",
        save=SaveId, reason=str, deadline="restore_s"),
    "pin_newest": message("Keeps the newest step in memory until it has reached these tiers. Null: not all is here.",
        tiers=list, deadline="answer_s", answer=fields(pinned_bytes=int | None)),
    "holds": message("Requests the node's shards of one step.",
        step=int, deadline="answer_s", answer=fields(shards=list[HeldShard])),
    "rejoin_verify": message("As `verify`, for shards in memory alone.",
        save=SaveId, ranks=list, deadline="verify_s", answer=fields(unverified=list)),
    "rejoin_adopt": message("Makes a save the newest one. `tiers`: where it is flushed to.",
        save=SaveId | None, tiers=list, deadline="answer_s", answer=fields(boundary=int, pinned_bytes=int)),
    "rejoin_done": message("Lets the workers continue to save.", boundary=int, deadline="answer_s"),
    "gate": message("Holds workers at their next boundary. The answer has the furthest boundary reached.",
        deadline="answer_s", answer=fields(boundary=int)),
    "stop_at": message("The boundary at which all ranks stop.", boundary=int, deadline="answer_s"),
    "save_every": message(
        "Has all ranks save every `steps` steps from this boundary on, and every `before` steps up to it.",
        boundary=int, steps=int, before=int, deadline="answer_s"),
    "flush_write": message("Writes this node's shards of a committed step to a tier.",
        tier=str, save=SaveId, deadline="flush_s", answer=fields("places", places=dict)),
    "flush_commit": message("Commits a step on the node's disk, once all nodes have written it.",
        tier=str, save=SaveId, deadline="flush_s"),
    "flush_list": message("Requests the saves on the node's disk.",
        tier=str, deadline="flush_s", answer=fields(saves=list[SaveId])),
    "flush_retain": message("Removes all but the newest `keep` complete saves from the node's disk.",
        tier=str, keep=int, complete=list[SaveId], deadline="flush_s"),
    "flush_done": message("The flush of a step to a tier has ended, so its slots are free.",
        tier=str, save=SaveId, reached=bool, nbytes=int, seconds=float, deadline="answer_s"),
})  # fmt: skip

# From any node's agent to another node's.
BETWEEN = Way("node", "node", {
    "record": message("Requests the record of one of the receiver's shards.",
        save=SaveId, rank=int, deadline="answer_s", answer=fields(record=ShardRecord)),
    "shard_bytes": message("Requests blocks (null: all) of such a shard. They are pushed under `tag`.",
        save=SaveId, rank=int, blocks=list | None, tag=int, deadline="answer_s"),
    "parts": message("Has the receiver push byte ranges to the sender, which computes a sum of them.",
        addend=list, save=SaveId, over=ParitySet, nbytes=int, tag=int, deadline="answer_s"),
    "sum": message("Has the receiver compute a sum of its own and others' ranges, and push it to the sender.",
        addends=list, save=SaveId, over=ParitySet, nbytes=int, tag=int, deadline="answer_s"),
    "row": message("Requests a further row of parity, which the receiver makes together with its own.",
        save=SaveId, over=ParitySet, row=int, tag=int, deadline="answer_s", answer=fields(comes=bool)),
    "lengths": message("Requests the lengths of the shards that the receiver puts under parity.",
        save=SaveId, ranks=list, deadline="answer_s", answer=fields(lengths=list, has_parity=bool)),
    "header": message("Requests the record of a lost shard, of which the receiver's parity has a copy.",
        save=SaveId, rank=int, deadline="answer_s", answer=fields(header=ShardRecord)),
    "verify_again": message("A worker found one of the receiver's shards damaged, so the receiver reads it again.",
        save=SaveId, rank=int, deadline="verify_s"),
})  # fmt: skip

WAYS = (OF_WORKER, OF_RUNNER, TO_WORKER, TO_RUNNER, TO_LEADER, TO_NODE, BETWEEN)


OF_AGENTS = (TO_NODE, BETWEEN, TO_LEADER)


def deadline_of(op: str) -> str:
    """The name of the deadline of a call between agents."""
    return base.kind_of(op, *OF_AGENTS).deadline
