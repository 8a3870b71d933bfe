"""The deadlines of a training process when it waits for others."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class WorkerDeadlines:
    """Seconds. The error after each deadline names who was waited for."""

    connect_s: float = (
        120.0  # for the agent to listen: it agrees with the other nodes' agents and rebuilds lost shards first
    )
    plan_s: float = 600.0  # for the agent to say what can be restored
    open_s: float = 300.0  # for the agent to fetch parts of a shard from another node or tier
    slot_s: float = 30.0  # for an older save to be committed when all slots are in use; the save is then dropped
    gate_s: float = 60.0  # for the agents to agree on a stop; training then goes on
    saves_s: float = 120.0  # at the end, for the last saves to be committed and flushed
