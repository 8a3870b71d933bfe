"""The catalogue of all messages between workers, runners and agents: who sends what to whom, and what comes back.

A message is a JSON object with its name under "op" (a request) or "event". `check` refuses a request that is malformed.
A class's fields are the message's; one with a default may be left out. `int` stands for a whole number of at least 0.
The agent of node rank 0 is also the leader, and sends to all nodes, its own included.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from types import UnionType
from typing import Any, ClassVar, get_args, get_origin, get_type_hints

from ckpt.errors import AgentError

_catalogue: dict[tuple[str, str, str], type[Message]] = {}


class Message:
    """One kind of message. The subclasses right below stand for a way; theirs for the messages on it."""

    sender: ClassVar[str] = ""
    receiver: ClassVar[str] = ""
    op: ClassVar[str] = ""
    answer: ClassVar[str] = ""  # the fields of the answer
    deadline: ClassVar[str] = ""  # the sender's wait, as ckpt.agent.timeouts or ckpt.worker.timeouts name it; "": none

    def __init_subclass__(
        cls, op: str = "", answer: str = "", deadline: str = "", sender: str = "", receiver: str = ""
    ) -> None:
        cls.sender, cls.receiver = sender or cls.sender, receiver or cls.receiver
        cls.op, cls.answer, cls.deadline = op, answer, deadline
        dataclasses.dataclass(frozen=True, kw_only=True, eq=False)(cls)
        if op:
            _catalogue[cls.sender, cls.receiver, op] = cls


def catalogue() -> Mapping[tuple[str, str, str], type[Message]]:
    """Every kind of message, by sender, receiver and name."""
    return _catalogue


def check(message: Mapping[str, Any], *ways: type[Message]) -> None:
    """Raises AgentError for a request that is on none of the ways, or is malformed."""
    op = message.get("op")
    keys = ((way.sender, way.receiver, op) for way in ways if isinstance(op, str))
    key = next((key for key in keys if key in _catalogue), None)
    if key is None:
        raise AgentError(f"unknown request {op!r:.40} of a {ways[0].sender}")
    for name, kinds, is_optional in _fields(key):
        if name not in message:
            if not is_optional:
                raise AgentError(f"malformed {op!r}: {name} is missing")
            continue
        value = message[name]
        if type(value) not in kinds or (type(value) is int and value < 0):
            expected = " or ".join(_SAID[one] for one in kinds)
            raise AgentError(f"malformed {op!r}: {name} is {value!r:.40}, expected {expected}")


_SAID: dict[type, str] = {
    int: "a whole number", float: "a number", bool: "true or false", str: "a string", list: "a list",
    dict: "an object", type(None): "null",
}  # fmt: skip


@cache
def _fields(key: tuple[str, str, str]) -> list[tuple[str, tuple[type, ...], bool]]:
    """Each field: its name, the types of its value, and whether it may be left out."""
    kind = _catalogue[key]
    hints, found = get_type_hints(kind), []
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        hint = hints[field.name]
        kinds = tuple(get_origin(one) or one for one in (get_args(hint) if isinstance(hint, UnionType) else (hint,)))
        kinds = (*kinds, int) if float in kinds else kinds
        found.append((field.name, kinds, (field.default, field.default_factory) != (dataclasses.MISSING,) * 2))
    return found


class OfWorker(Message, sender="worker", receiver="agent"):
    """A worker to its node's agent. Hello comes first."""


class OfRunner(Message, sender="runner", receiver="agent"):
    """A node's runner to the node's agent. Hello comes first."""


class ToWorker(Message, sender="agent", receiver="worker"):
    """An event, to all workers of the node."""


class ToRunner(Message, sender="agent", receiver="runner"):
    """An event, kept until a runner is connected."""


class ToLeader(Message, sender="node", receiver="leader"):
    """A node's agent to the leader."""


class ToNode(Message, sender="leader", receiver="node"):
    """The leader to a node's agent."""


class Between(Message, sender="node", receiver="node"):
    """One node's agent to another's, whoever leads."""


# workers


class AskPlan(OfWorker, op="plan", deadline="plan_s", answer="step attempt tier world_size skipped generation pinned"):
    """What is restored. `step` is null where there is nothing."""


class AskForeseen(OfWorker, op="foreseen", deadline="plan_s", answer="step world_size"):
    """The plan that may come while lost shards are still being made again. `step` is null where there is none."""


class Prefetch(OfWorker, op="prefetch"):
    """What a load would read of the foreseen plan: rows of saved rank and blocks."""

    step: int
    wants: list[Any]


class Choose(OfWorker, op="choose", deadline="plan_s", answer="step tier world_size"):
    """Lets this node's workers open another step than the one that is restored."""

    step: int


class Open(OfWorker, op="open", deadline="open_s", answer="path base record"):
    """Where a saved rank's shard can be read. No step: the one that is restored. No blocks: only the record."""

    rank: int
    blocks: list[Any] | None
    step: int | None = None


class ReportDamaged(OfWorker, op="damaged", deadline="open_s"):
    """What was read there does not verify: take another source."""

    rank: int
    path: str
    step: int | None = None


class Loaded(OfWorker, op="loaded"):
    """This worker has read what it wants: when all have, what was fetched for them goes."""


class Staged(OfWorker, op="staged"):
    """This worker's shard of a step lies in a slot, complete."""

    slot: int
    step: int
    rank: int
    layout: dict[str, Any]
    flush: bool = False
    tokens: dict[str, Any] = dataclasses.field(default_factory=dict)


class DropShard(OfWorker, op="drop_shard"):
    """This worker has no shard for a step, and why."""

    step: int
    rank: int
    reason: str


class DropUpTo(OfWorker, op="drop_up_to"):
    """Up to this step the worker had no agent: no save up to there can be complete."""

    step: int
    rank: int


class AwaitSaves(OfWorker, op="await_saves", deadline="saves_s"):
    """Answered when none of the node's saves is in flight any more."""


class AskRejoin(OfWorker, op="rejoin", deadline="plan_s", answer="step attempt generation pinned"):
    """Where saving goes on, after the agents of `generation` were lost."""

    generation: int


class Bye(OfWorker, op="bye"):
    """This worker has closed its Checkpointer."""


class StepCommitted(ToWorker, op="committed"):
    """A step survives what the scheme promises. `pinned`: it is on its way to a lower tier, and keeps its slot."""

    step: int
    pinned: bool
    bytes: int
    seconds: float


class Flushed(ToWorker, op="flushed"):
    """The flush of a step to a lower tier has ended: the step has reached the tier, or not."""

    step: int
    tier: str
    pinned: bool
    reached: bool
    bytes: int = 0
    seconds: float = 0


class FlushDropped(ToWorker, op="flush_dropped"):
    """A step that was due in a tier does not go there: an older one is still on its way."""

    step: int
    tier: str
    under_way: str


class Dropped(ToWorker, op="dropped"):
    """A save did not come about, and why."""

    step: int
    reason: str
    replicas_differ: bool = False


class WorldLost(ToWorker, op="world_lost"):
    """The other agents are lost: nothing is committed until others have taken their place."""

    reason: str


# runners


class Ping(OfRunner, op="ping"):
    """Answered by the event `pong`."""


class AskStop(OfRunner, op="stop"):
    """All ranks of all nodes are to stop at one boundary. Answered by the event `stop_agreed`."""


class Shutdown(OfRunner, op="shutdown"):
    """The agent is to end, when the workers have left or after `workers_s`."""

    workers_s: float = 0.0


class Pong(ToRunner, op="pong"):
    """The agent's event loop runs."""


class StopAgreed(ToRunner, op="stop_agreed"):
    """All ranks stop at this boundary."""

    boundary: int


class Commit(ToRunner, op="commit"):
    """A step has reached a tier, "memory" included."""

    tier: str
    step: int
    bytes: int
    seconds: float


class Problem(ToRunner, op="problem"):
    """Something failed, and training survives it. `failed`: the tier that a save has not reached and will not."""

    what: str
    detail: str
    step: int | None = None
    failed: str | None = None


class RestorePlan(ToRunner, op="restore_plan"):
    """What is restored, and from where each rank's shard comes."""

    step: int
    attempt_of_step: int | None
    tier: str
    skipped: list[Any]
    sources: dict[str, Any]
    seconds: float


class ShardRebuilt(ToRunner, op="rebuilt"):
    """A lost shard lies in this node's memory again."""

    rank: int
    from_node: str
    bytes: int
    seconds: float
    tier: str = ""


class Rejoined(ToRunner, op="rejoined"):
    """Agents have taken the place of lost ones, and saving goes on from this step."""

    step: int | None
    generation: int
    seconds: float


# a save


class NodeSealed(ToLeader, op="sealed", deadline="answer_s"):
    """All shards of this node are sealed."""

    step: int
    nbytes: int
    flush: bool
    token_counts: list[Any]
    elapsed_s: float


class AskDrop(ToLeader, op="ask_drop", deadline="answer_s"):
    """This node cannot bring its shards of a step, and why."""

    step: int
    reason: str


class AskDropUpTo(ToLeader, op="ask_drop_up_to", deadline="answer_s"):
    """A worker of this node had no agent up to this step."""

    step: int


class Protect(ToNode, op="protect", deadline="protect_s"):
    """All nodes have sealed: make the redundancy."""

    step: int


class CommitSave(ToNode, op="commit_save", deadline="answer_s"):
    """All nodes have protected: older steps may go. `tiers`: where the step goes from here."""

    step: int
    tiers: list[Any]
    nbytes: int
    seconds: float


class DropSave(ToNode, op="drop", deadline="answer_s"):
    """The save does not come about, and why."""

    step: int
    reason: str
    replicas_differ: bool


# redundancy


class SendRecord(Between, op="record", deadline="answer_s", answer="record"):
    """The record of a shard that the receiver holds."""

    save: dict[str, Any]
    rank: int


class SendBytes(Between, op="shard_bytes", deadline="answer_s"):
    """The blocks of such a shard (null: all), pushed under `tag`."""

    save: dict[str, Any]
    rank: int
    blocks: list[Any] | None
    tag: int


class SendParts(Between, op="parts", deadline="protect_s"):
    """Byte ranges that the receiver holds, pushed to `target`, who makes a sum of them."""

    addend: list[Any]
    save: dict[str, Any]
    over: dict[str, Any]
    nbytes: int
    target: int
    tag: int


class SendSum(Between, op="sum", deadline="protect_s"):
    """A sum that the receiver makes of others' ranges and its own, pushed to `target`."""

    own: list[Any]
    others: list[Any]
    save: dict[str, Any]
    over: dict[str, Any]
    nbytes: int
    target: int
    tag: int


class SendRow(Between, op="row", deadline="protect_s", answer="comes"):
    """A further row of parity, which the receiver makes together with its own."""

    save: dict[str, Any]
    over: dict[str, Any]
    row: int
    tag: int


class AskLengths(Between, op="lengths", deadline="answer_s", answer="lengths has_parity"):
    """The lengths of the shards that a member puts under parity."""

    save: dict[str, Any]
    ranks: list[Any]


class AskHeader(Between, op="header", deadline="answer_s", answer="header"):
    """The record of a lost shard, of which the receiver's parity keeps a copy."""

    save: dict[str, Any]
    rank: int


class VerifyParity(ToNode, op="verify_parity", deadline="verify_s", answer="good"):
    """Whether the node's parity verifies."""

    save: dict[str, Any]
    over: dict[str, Any]
    index: int


class Rebuild(ToNode, op="rebuild", deadline="restore_s", answer="damaged"):
    """Make a lost shard again from parity."""

    rank: int
    save: dict[str, Any]
    over: dict[str, Any]
    shard_nodes: list[Any]
    parity_nodes: list[Any]
    headers: list[Any]


# a restore


class AskInventory(ToNode, op="inventory", deadline="answer_s", answer="shards parity nvme nvme_last_s"):
    """What the node holds in memory and on its disk."""


class VerifyShards(ToNode, op="verify", deadline="verify_s", answer="unverified"):
    """The ranks of which the node has no shard that verifies."""

    save: dict[str, Any]
    ranks: list[Any]


class VerifyStored(ToNode, op="verify_stored", deadline="restore_s", answer="fetched damaged"):
    """Read some ranks' shards in a tier that all nodes see, into memory where there is room."""

    tier: str
    save: dict[str, Any]
    ranks: list[Any]


class Foresee(ToNode, op="foresee", deadline="restore_s"):
    """The plan that may come: workers may have what survives of it fetched."""

    plan: dict[str, Any]
    headers: list[Any]


class Withdraw(ToNode, op="withdraw", deadline="restore_s"):
    """The foreseen plan does not come."""


class TakeUpPlan(ToNode, op="restore", deadline="restore_s", answer="pinned_bytes taken"):
    """The plan that all nodes take up. `tiers`: where the step is flushed to."""

    plan: dict[str, Any]
    same_world: bool
    tiers: list[Any]


class NoRestore(ToNode, op="no_restore", deadline="restore_s"):
    """There is no plan, and why."""

    reason: str


class ProtectNewest(ToNode, op="protect_newest", deadline="restore_s", answer="made"):
    """Make the redundancy that the restored step lacks."""


class ProtectMoved(ToNode, op="protect_moved", deadline="restore_s", answer="made"):
    """The same where its shards lie on other nodes than their ranks run on."""

    placement: list[Any]
    alone: list[Any]


class QuarantineSave(ToNode, op="quarantine", deadline="restore_s"):
    """Never try this step again: its bytes are damaged here where `reason` says so."""

    save: dict[str, Any]
    reason: str


class VerifyAgain(Between, op="verify_again", deadline="verify_s"):
    """A worker found a shard of the receiver's damaged."""

    save: dict[str, Any]
    rank: int


class ChooseStep(ToLeader, op="find_chosen", deadline="restore_s", answer="plan"):
    """Look for a step that a script has chosen."""

    step: int


class AskHolds(ToNode, op="holds", deadline="answer_s", answer="shards"):
    """What the node holds of one step."""

    step: int


class RejoinVerify(ToNode, op="rejoin_verify", deadline="verify_s", answer="unverified"):
    """Which of some ranks have no shard of a save in the node's memory that verifies."""

    save: dict[str, Any]
    ranks: list[Any]


class RejoinProtect(ToNode, op="rejoin_protect", deadline="restore_s", answer="made boundary pinned_bytes"):
    """Take a save up as the newest, and make the redundancy that it lacks."""

    save: dict[str, Any] | None
    tiers: list[Any]
    placement: list[Any] | None
    alone: list[Any]


class RejoinDone(ToNode, op="rejoin_done", deadline="answer_s"):
    """Let the workers in."""

    boundary: int


# a stop, lower tiers, the end


class AgreeStop(ToLeader, op="ask_stop", deadline="answer_s"):
    """A runner of this node asks for a stop."""


class RaiseGate(ToNode, op="gate", deadline="answer_s", answer="boundary"):
    """Let workers wait at their next boundary, and say how far they are."""


class StopAt(ToNode, op="stop_at", deadline="answer_s"):
    """The boundary at which all ranks stop."""

    boundary: int


class WriteTier(ToNode, op="flush_write", deadline="flush_s", answer="places"):
    """Write this node's shards of a committed step to a tier."""

    tier: str
    step: int


class CommitTier(ToNode, op="flush_commit", deadline="flush_s"):
    """All nodes have written to their disks: commit there."""

    tier: str
    step: int


class ListTier(ToNode, op="flush_list", deadline="flush_s", answer="saves"):
    """The saves on the node's disk."""

    tier: str


class RetainTier(ToNode, op="flush_retain", deadline="flush_s"):
    """Remove all but the newest `keep` complete saves from the node's disk."""

    tier: str
    keep: int
    complete: list[Any]


class TierDone(ToNode, op="flush_done", deadline="answer_s"):
    """The flush of a step to a tier has ended: its slots are free."""

    tier: str
    step: int
    reached: bool
    nbytes: int
    seconds: float


class Unused(ToLeader, op="unused", deadline="leave_s", answer="leave"):
    """No process of the program is connected to this agent any more."""
