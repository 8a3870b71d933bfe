"""The agents' deadlines when they wait for each other."""

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
    restore_s: float = 1800.0  # for all nodes to carry out a restore plan, with rebuilds
    world_s: float = 120.0  # for all agents of the attempt to connect
    beat_s: float = 10.0  # between renewals of the lease on the tiers
    quiet_s: float = 75.0  # without a renewal, after which another run counts as dead; NFS may show old names for 60 s
    use_s: float = 120.0  # for the program that has started the agents to connect
    last_s: float = 15.0  # for agents to connect after a SIGTERM: Slurm's KillWait is 30 s, and a save must follow
    leave_s: float = 5.0  # for all agents to leave together at the end
