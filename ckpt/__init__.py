"""Holds training state in tiers and gives it back.

    checkpointer   the face for the training script
    trainer/       staging and restoring, in the training process
    agent/         one process per node that seals, protects, drains and recovers
    redundancy/    who holds what for whom
    tiers/         the places below memory
    record/        what is stored, and how it is trusted
    job_end/       what a dead job has only in its nodes' memories goes to the tiers that ask for it
    adapters/      export and import; HyperPod's names
    sagemaker      the same by HyperPod's names: a script changes its import
    planning       what a job's checkpoints will take, and what they survive
    bench/         the engine beside plain copies and torch's own checkpoints
    transport      the only door to MPI
    cli            `holdfast ckpt`; cli_plan, cli_rebuild, verbs: its verbs; progress: their bar; reported: their errors
    inventory      what steps and shards a path or URL holds, for ls and verify; table: how they are shown
    awaiting       what the verbs say of storage that keeps silent
    patience       waits with a deadline, the launcher's too
    forked         what a process forked from a training process lets go of
    config, errors; sections: the models of the `checkpoint:` section

Public names:
    Checkpointer     load, due, save, stop_requested for a training script
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
    from ckpt.agent.client import Monitor
    from ckpt.checkpointer import Checkpointer
    from ckpt.config import CheckpointConfig
    from ckpt.record.board import Board
    from ckpt.record.files import durable_write
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
    "Board": "ckpt.record.board",
    "CheckpointConfig": "ckpt.config",
    "Checkpointer": "ckpt.checkpointer",
    "Monitor": "ckpt.agent.client",
    "check_shared": "ckpt.tiers.posix",
    "durable_write": "ckpt.record.files",
    "newest_steps": "ckpt.tiers.newest",
}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used: the launcher needs neither torch nor MPI."""
    if name not in _HOME:
        raise AttributeError(f"module 'ckpt' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
