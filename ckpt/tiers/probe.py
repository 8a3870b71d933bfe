"""Checks that a job may put, get and delete objects in its bucket, with one small object under the job's prefix."""

from __future__ import annotations

import secrets

from ckpt.config import CheckpointConfig
from ckpt.errors import ConfigError, CorruptError
from ckpt.tiers.buckets import open_bucket, split_url
from ckpt.tiers.open import s3_options
from ckpt.tiers.throttle import Throttle


def probe_bucket(config: CheckpointConfig) -> None:
    """Put, get and delete an object.

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
