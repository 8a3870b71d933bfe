"""The newest restorable step of each lower tier, for who supervises the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ckpt.config import CheckpointConfig
from ckpt.tiers.posix import SharedTier


def newest_steps(section: Mapping[str, Any]) -> dict[str, int | None]:
    """Reads the manifests of the configured lower tiers.

    Args:
        section: the `checkpoint:` section of a job file.

    Returns:
        {"shared": newest committed step or None}; empty when no lower tier is configured.

    Raises:
        ConfigError: the section is invalid.
        OSError: the storage cannot be read.
    """
    config = CheckpointConfig.from_mapping(section)
    if config.shared is None:
        return {}
    steps = SharedTier(config.shared.path, config.namespace).steps()
    return {"shared": steps[0].step if steps else None}
