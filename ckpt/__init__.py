"""Holds training state in tiers and gives it back.

    checkpointer   the face for the training script; sagemaker: the same by HyperPod's names
    elastic_event  whether all ranks stop, for scripts that hold no Checkpointer
    worker/        saves and loads, in the training process
    data/          which samples each rank sees: batch plan, sampler, loader
    agent/         one process per node that seals, protects, flushes and restores
    redundancy/    which node holds what for which
    tiers/         the places below memory
    epilog/        after a job's end: what only its nodes' memories hold goes to the tiers that ask for it
    memory/        what workers and agent share; format/: what is stored; native/: calls to C libraries
    convert/       export and import
    cli/           `holdfast ckpt`
    capacity       what a job's checkpoints take, and which losses they survive
    timeouts       waits with a deadline, the launcher's too
    fork           what a process forked from a training process lets go of
    config, errors; sections: the models of the `checkpoint:` section

Public names:
    Checkpointer     load, should_save, save, should_stop for a training script
    CheckpointError  base of all errors raised here
    Board            the workers' rows on a node, as its runner reads them
    Monitor          a node's runner's connection to its checkpoint agent
    newest_steps     the newest restorable step of each lower tier
    check_shared     whether a shared directory may be used for a namespace
    CheckpointConfig the validated `checkpoint:` section of a job file
    durable_write    a private file that a reader sees whole, before or after
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ckpt.errors import CheckpointError

if TYPE_CHECKING:
    from ckpt.agent.rpc.client import Monitor
    from ckpt.checkpointer import Checkpointer
    from ckpt.config import CheckpointConfig
    from ckpt.format.atomic_files import durable_write
    from ckpt.memory.board import Board
    from ckpt.tiers.newest import newest_steps
    from ckpt.tiers.posix import check_shared

__all__ = [
    "Board",
    "CheckpointConfig",
    "CheckpointError",
    "Checkpointer",
    "Monitor",
    "check_shared",
    "durable_write",
    "newest_steps",
]

_HOME = {
    "Board": "ckpt.memory.board",
    "CheckpointConfig": "ckpt.config",
    "Checkpointer": "ckpt.checkpointer",
    "Monitor": "ckpt.agent.rpc.client",
    "check_shared": "ckpt.tiers.posix",
    "durable_write": "ckpt.format.atomic_files",
    "newest_steps": "ckpt.tiers.newest",
}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used: the launcher needs neither torch nor MPI."""
    if name not in _HOME:
        raise AttributeError(f"module 'ckpt' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
