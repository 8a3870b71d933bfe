"""The names that users import, and the version. The code is in launcher (submit, supervise) and ckpt (save, load).

Beside them: adapters/ for frameworks, base/ and settings/ and blocks.py, which all packages use; rng.py and
own_rendezvous.py, for training scripts.

    Checkpointer      load, should_save, save, should_stop for a training script
    CheckpointConfig  the `checkpoint:` section, for a program without a launcher
    batch_plan        micro-batch and gradient accumulation for a world size
    ElasticSampler    each sample once an epoch, across restarts and resizes
    ElasticLoader     keeps the training loop's position in the data
    ElasticStream     the same for an iterable data set
    RngState          the random number generators, as a part of the state
    elastic_event_detected   whether all ranks stop at this step, by the name of HyperPod's scripts
    newest_steps      the newest restorable step of each tier below memory
    CheckpointError   base of all errors of checkpoints
    Executor          submitit executor whose jobs survive the loss of nodes
    Torchrun          a training script to submit
    LauncherError     base of all errors of the launcher

Importing this package imports nothing else; each name is imported when it is first used.
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ckpt import CheckpointConfig, Checkpointer, CheckpointError, newest_steps
    from ckpt.data import ElasticLoader, ElasticSampler, ElasticStream, batch_plan
    from ckpt.elastic_event import elastic_event_detected
    from holdfast.rng import RngState
    from launcher import Executor, LauncherError, Torchrun

__all__ = [
    "CheckpointConfig",
    "CheckpointError",
    "Checkpointer",
    "ElasticLoader",
    "ElasticSampler",
    "ElasticStream",
    "Executor",
    "LauncherError",
    "RngState",
    "Torchrun",
    "batch_plan",
    "elastic_event_detected",
    "newest_steps",
]
__version__ = "0.3.0"

_HOME = {
    "CheckpointConfig": "ckpt",
    "CheckpointError": "ckpt",
    "Checkpointer": "ckpt",
    "ElasticLoader": "ckpt.data",
    "ElasticSampler": "ckpt.data",
    "ElasticStream": "ckpt.data",
    "Executor": "launcher",
    "LauncherError": "launcher",
    "RngState": "holdfast.rng",
    "Torchrun": "launcher",
    "batch_plan": "ckpt.data",
    "elastic_event_detected": "ckpt.elastic_event",
    "newest_steps": "ckpt",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    _refuse_another(_HOME[name].partition(".")[0])
    return getattr(import_module(_HOME[name]), name)


def _refuse_another(package: str) -> None:
    """Raise ImportError if Python finds another package than Holdfast's under this name.

    Such a package is installed in the same environment, or lies beside the script or in a folder of PYTHONPATH.
    """
    found = find_spec(package)
    places = [] if found is None else list(found.submodule_search_locations or [found.origin or ""])
    own = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), package)
    if found is not None and own not in map(os.path.realpath, places):
        raise ImportError(
            f"{places[0]} hides Holdfast's package {package}: rename it if it is yours; if another distribution has "
            f"installed it, uninstall that one or use an environment without it (Holdfast's own is {own})",
            name=package,
            path=places[0],
        )
