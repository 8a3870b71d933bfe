"""Makes the configured lower tiers. Only this module knows all kinds of tiers."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from ckpt.config import CheckpointConfig
from ckpt.errors import ConfigError, CorruptError
from ckpt.sections import S3Section
from ckpt.tiers import nvme, posix, s3
from ckpt.tiers.buckets import open_bucket, split_url
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
    names = ("endpoint_url", "region", "path_style", "sse", "sse_kms_key_id", "bucket_owner")
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


def probe_bucket(config: CheckpointConfig) -> None:
    """Check that a job may put, get and delete objects in its bucket, with a small object under the job's prefix.

    Args:
        config: a configuration with an s3 section.

    Raises:
        OSError: the bucket refuses a request, or does not answer.
        CheckpointError: the bytes differ, or the configuration is not valid.
    """
    if config.s3 is None:
        raise ConfigError("checkpoint.s3: missing; there is no bucket to try")
    scheme, name, prefix = split_url(config.s3.url)
    bucket = open_bucket(config.s3.url, s3_options(config.s3), Throttle(None))
    data = secrets.token_hex(16).encode()
    key = "/".join(filter(None, (prefix, config.namespace, f".holdfast-doctor-{data[:8].decode()}")))
    bucket.put(key, data)
    try:
        if bucket.get(key) != data:
            raise CorruptError(f"{scheme}://{name}/{key}: other bytes came back than were put")
    finally:
        bucket.delete([key])
