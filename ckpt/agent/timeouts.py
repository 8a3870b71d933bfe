"""How long the agents wait for each other before a save is dropped or a restore is given up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class AgentDeadlines:
    """All in seconds. Generous: they bound the wait for a lost or stuck node, not the work of a slow one."""

    answer_s: float = 30.0  # a question that another agent answers from memory
    seal_s: float = 300.0  # from the first node that has sealed a step to the last
    protect_s: float = 600.0  # all nodes make their redundancy for one save
    flush_s: float = 3600.0  # all nodes write one save to the shared tier
    verify_s: float = 600.0  # a node reads the shards that a restore would use
    restore_s: float = 1800.0  # all nodes take up a restore plan, lost shards made again
    world_s: float = 120.0  # all agents of the attempt come together
    beat_s: float = 10.0  # between two signs of life in the tiers that hold our claim
    quiet_s: float = 75.0  # without a sign of life of another run it is dead; NFS may show old names for 60 s
    use_s: float = 120.0  # for the program that has started the agents itself to connect
    last_s: float = 15.0  # agents come together after a SIGTERM: Slurm's KillWait is 30 s, and a save has to follow
    leave_s: float = 5.0  # all agents leave together at the end
