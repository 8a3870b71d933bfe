"""The newest restorable step of each lower tier, for who supervises the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ckpt.config import CheckpointConfig
from ckpt.tiers.open import lower_tiers


def newest_steps(section: Mapping[str, Any]) -> dict[str, int | None]:
    """Reads the manifests of the configured lower tiers that all nodes see.

    Args:
        section: the `checkpoint:` section of a job file.

    Returns:
        By tier ("shared", "s3") its newest committed step or None; empty when no such tier is configured.

    Raises:
        ConfigError: the section is invalid.
        OSError: the storage cannot be read.
    """
    config = CheckpointConfig.from_mapping(section)
    found = {name: tier.steps() for name, tier in lower_tiers(config, node=None).items()}
    return {name: steps[0].step if steps else None for name, steps in found.items()}
