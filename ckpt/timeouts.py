"""The deadlines of agents and workers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class AgentDeadlines:
    """Seconds. They limit the wait for a lost or stuck node, and are long enough for a slow one."""

    answer_s: float = 30.0  # for another agent's reply from memory
    seal_s: float = 300.0  # from the first node that has sealed a step to the last
    protect_s: float = 600.0  # for all nodes to make the redundancy of one save
    flush_s: float = 3600.0  # for all nodes to write one save to the shared tier
    verify_s: float = 600.0  # for a node to read the shards of a restore
    load_s: float = 2.0  # for a node's workers to load, before the redundancy of the restored step is completed
    restore_s: float = 1800.0  # for all nodes to carry out a restore plan, with rebuilds
    world_s: float = 120.0  # for all agents of the attempt to connect
    beat_s: float = 10.0  # between renewals of the lease on the tiers
    quiet_s: float = 75.0  # without a renewal, after which another run counts as dead; NFS may show old names for 60 s
    use_s: float = 120.0  # for the program that has started the agents to connect
    last_s: float = 15.0  # for agents to connect after a SIGTERM: Slurm's KillWait is 30 s, and a save must follow
    leave_s: float = 5.0  # for all agents to leave together at the end
    tier_s: float = 2.0  # a tier's contents at a rejoin; a slower tier waits for the next save that is due there
    stall_s: float = 30.0  # the next bytes of a transfer between two nodes
    rows_s: float = 2.0  # the keepers of a stripe's rows for each other; then each makes its own


@dataclass(frozen=True, kw_only=True)
class WorkerDeadlines:
    """Seconds. The error after each deadline names who was waited for."""

    connect_s: float = 120.0  # for the agent to listen: all agents agree and rebuild lost shards first
    plan_s: float = 600.0  # for the agent to say what can be restored
    open_s: float = 300.0  # for the agent to fetch parts of a shard from another node or tier
    slot_s: float = 30.0  # for an older save to be committed when all slots are in use; the save is then dropped
    gate_s: float = 60.0  # for the agents to agree on a stop; training then goes on
    saves_s: float = 120.0  # at the end, for the last saves to be committed and flushed
    send_s: float = 30.0  # for the agent to take a message off its socket; a node's runner waits as long
    end_s: float = 30.0  # for agents that this process has started to end
    finish_s: float = 3600.0  # for them to write the newest step to the lower tiers before
