"""Holds training state in tiers and restores it.

    checkpointer   the interface for training scripts; sagemaker: the same with HyperPod's names
    elastic_event  whether all ranks stop, for scripts without a Checkpointer
    worker/        saves and loads, in the training process
    data/          the samples of each rank: batch plan, sampler, loader
    agent/         one process per node that seals, protects, flushes and restores
    redundancy/    copies and parity between nodes
    tiers/         the tiers below memory
    memory/        memory shared by workers and agent; format/: stored formats; native/: calls to C libraries
    convert/       export and import
    cli/           `holdfast ckpt`
    capacity       the memory and storage that a job's checkpoints need, and the losses they survive
    cadence        how often to save, from what a save costs and how often nodes fail; outlook: what failures will cost
    timeouts       the deadlines of workers and agents
    fork           closes Holdfast's descriptors in processes forked from a worker
    config, errors; sections: the models of the `checkpoint:` section

Public names:
    Checkpointer     load, should_save, save, should_stop for a training script
    CheckpointError  base of all errors raised here
    Board            the workers' rows on a node, read by its runner
    Monitor          a node's runner's connection to its checkpoint agent
    newest_steps     the newest restorable step of each lower tier
    check_shared     whether a shared directory may be used for a namespace
    CheckpointConfig the validated `checkpoint:` section of a job file
    make_plan        the memory and storage that a job's checkpoints take, and the losses they survive
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ckpt.errors import CheckpointError

if TYPE_CHECKING:
    from ckpt.agent.rpc.client import Monitor
    from ckpt.capacity import make_plan
    from ckpt.checkpointer import Checkpointer
    from ckpt.config import CheckpointConfig
    from ckpt.memory.board import Board
    from ckpt.tiers.open import newest_steps
    from ckpt.tiers.posix import check_shared

__all__ = [
    "Board",
    "CheckpointConfig",
    "CheckpointError",
    "Checkpointer",
    "Monitor",
    "check_shared",
    "make_plan",
    "newest_steps",
]

_HOME = {
    "Board": "ckpt.memory.board",
    "CheckpointConfig": "ckpt.config",
    "Checkpointer": "ckpt.checkpointer",
    "Monitor": "ckpt.agent.rpc.client",
    "check_shared": "ckpt.tiers.posix",
    "make_plan": "ckpt.capacity",
    "newest_steps": "ckpt.tiers.open",
}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used: the launcher needs neither torch nor MPI."""
    if name not in _HOME:
        raise AttributeError(f"module 'ckpt' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
