"""Makes the configured lower tiers. Only this module knows all kinds of tiers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ckpt.config import CheckpointConfig
from ckpt.sections import S3Section
from ckpt.tiers import nvme, posix, s3
from ckpt.tiers.s3_client import S3Options
from ckpt.tiers.throttle import Throttle
from ckpt.tiers.tier import Tier


def lower_tiers(config: CheckpointConfig, node: str | None) -> dict[str, Tier]:
    """The tiers by name, nearest first. Nothing is read or written yet.

    Args:
        node: this node's name; None outside of the job's nodes, where no node-local tier is available.
    """
    tiers: dict[str, Tier] = {}
    if (local := config.nvme) and node is not None:
        tiers["nvme"] = nvme.NvmeTier(
            local.path, config.namespace, node=node, throttle=Throttle(local.rate_limit_bytes_s)
        )
    if shared := config.shared:
        tiers["shared"] = posix.SharedTier(
            shared.path,
            config.namespace,
            stripe_count=shared.stripe_count,
            throttle=Throttle(shared.rate_limit_bytes_s),
        )
    if bucket := config.s3:
        tiers["s3"] = s3.S3Tier(
            bucket.url, config.namespace, s3_options(bucket), throttle=Throttle(bucket.rate_limit_bytes_s)
        )
    return tiers


def s3_options(section: S3Section) -> S3Options:
    """The options for a bucket's requests, from the job file."""
    names = ("endpoint_url", "region", "path_style", "sse", "sse_kms_key_id")
    return S3Options(**{name: getattr(section, name) for name in names})


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
