"""SageMaker HyperPod's tiered checkpointing with its names, on Holdfast's engine. A script changes only its imports.

    from ckpt.sagemaker import SageMakerCheckpointConfig, SageMakerTieredStorageWriter, SageMakerTieredStorageReader
    from ckpt.sagemaker import elastic_event_detected

    config = SageMakerCheckpointConfig(namespace="gpt", world_size=16, s3_tier_base_path="s3://bucket/ckpt")
    dcp.async_save(state, storage_writer=SageMakerTieredStorageWriter(checkpoint_config=config, step=step))
    if elastic_event_detected(): return     # all ranks stop at this step, which has been saved
    dcp.load(state, storage_reader=SageMakerTieredStorageReader(checkpoint_config=config))

Writers and readers of one process share one connection for each namespace. It is closed when the process ends. Under
the launcher the job file configures the tiers and the namespace. `s3_tier_base_path` is not used, `namespace` is only a
name, and a script can use one namespace.
"""

from __future__ import annotations

import atexit
import os
from dataclasses import dataclass
from os.path import abspath
from typing import Any

from ckpt.config import CheckpointConfig
from ckpt.elastic_event import elastic_event_detected, opened
from ckpt.errors import ConfigError
from ckpt.worker.dcp import DcpReader, DcpWriter
from ckpt.worker.engine import Engine
from holdfast.base.environment import Variable

__all__ = [
    "SageMakerCheckpointConfig",
    "SageMakerTieredStorageReader",
    "SageMakerTieredStorageWriter",
    "elastic_event_detected",
]

_open: dict[str, tuple[int, Engine]] = {}  # by namespace: pid of the process that made the engine, and the engine


@dataclass(kw_only=True)
class SageMakerCheckpointConfig:
    """The configuration with HyperPod's field names. It may be changed between saves, as HyperPod's scripts do."""

    namespace: str
    world_size: int
    s3_tier_base_path: str | None = None  # s3://bucket/prefix, or a directory that all nodes see
    save_to_s3: bool = False  # whether the next save also goes to s3_tier_base_path

    def __post_init__(self) -> None:
        if isinstance(self.world_size, bool) or not isinstance(self.world_size, int) or self.world_size < 1:
            raise ConfigError(f"SageMakerCheckpointConfig.world_size: got {self.world_size!r}, expected at least 1")
        path = self.s3_tier_base_path
        if path is not None and "://" in path and not path.startswith("s3://"):
            raise ConfigError(
                f"SageMakerCheckpointConfig.s3_tier_base_path: got {path!r}, expected a directory or s3://bucket/prefix"
            )
        if self.save_to_s3 and path is None and Variable.RUN_ID not in os.environ:
            raise ConfigError("SageMakerCheckpointConfig.save_to_s3: needs s3_tier_base_path, and that is not set")


class SageMakerTieredStorageWriter(DcpWriter):
    """The `storage_writer` of dcp.save and async_save; one for each step."""

    def __init__(self, checkpoint_config: SageMakerCheckpointConfig, step: int) -> None:
        super().__init__(_engine(checkpoint_config), step, flush=checkpoint_config.save_to_s3)


class SageMakerTieredStorageReader(DcpReader):
    """The `storage_reader` of dcp.load.

    `step=None` loads the newest recoverable step. Another step is read from where `save_to_s3` has written it.
    """

    def __init__(self, checkpoint_config: SageMakerCheckpointConfig, step: int | None = None) -> None:
        super().__init__(_engine(checkpoint_config), step)


def _engine(config: SageMakerCheckpointConfig) -> Engine:
    """This process's engine for a namespace."""
    mine = {namespace: engine for namespace, (pid, engine) in _open.items() if pid == os.getpid()}
    found = mine.get(config.namespace)
    if found is None:
        if mine and Variable.RUN_ID in os.environ:
            raise ConfigError(
                f"SageMakerCheckpointConfig.namespace: got {config.namespace!r}, but this process uses {min(mine)!r}; "
                "all steps of a job go to the job file's namespace, so use one"
            )
        world_size = os.environ.get("WORLD_SIZE")
        if world_size is not None and int(world_size) != config.world_size:
            raise ConfigError(
                f"SageMakerCheckpointConfig.world_size: got {config.world_size}, the environment has {world_size} ranks"
            )
        found = opened() or _opened(config)
        _open[config.namespace] = (os.getpid(), found)
    return found


def _opened(config: SageMakerCheckpointConfig) -> Engine:
    if Variable.RUN_ID in os.environ:
        return Engine.from_env(os.environ)
    section: dict[str, Any] = {"namespace": config.namespace, "memory": {"every_steps": 1}}
    if (path := config.s3_tier_base_path) is not None:
        # `save_to_s3` alone decides which steps go there
        name, where = ("s3", {"url": path}) if path.startswith("s3://") else ("shared", {"path": abspath(path)})
        section[name] = {**where, "every_steps": 1 << 40}
    return Engine.standalone(CheckpointConfig.from_mapping(section, where="SageMakerCheckpointConfig"), env=os.environ)


@atexit.register
def _close_all() -> None:
    for pid, engine in _open.values():
        if pid == os.getpid():
            engine.close()
    _open.clear()
