"""The newest restorable step of each lower tier, for the supervisor of the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ckpt.config import CheckpointConfig
from ckpt.tiers.open import lower_tiers


def newest_steps(section: Mapping[str, Any]) -> dict[str, int | None]:
    """Find the newest committed step of each configured lower tier that all nodes share.

    Args:
        section: the `checkpoint:` section of a job file.

    Returns:
        From tier ("shared", "s3") to its newest committed step, or None; empty if no such tier is configured.

    Raises:
        ConfigError: the section is invalid.
        OSError: the storage cannot be read.
    """
    config = CheckpointConfig.from_mapping(section)
    found = {name: tier.steps() for name, tier in lower_tiers(config, node=None).items()}
    return {name: steps[0].step if steps else None for name, steps in found.items()}
