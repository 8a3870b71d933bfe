"""Whether a job's bucket lets it put, get and delete: tried with one small object under the job's prefix."""

from __future__ import annotations

import secrets

from ckpt.config import CheckpointConfig
from ckpt.errors import ConfigError, CorruptError
from ckpt.tiers.buckets import open_bucket, split_url
from ckpt.tiers.open import s3_options
from ckpt.tiers.throttle import Throttle


def probe_bucket(config: CheckpointConfig) -> None:
    """Puts, gets and deletes an object.

    Args:
        config: has an s3 section.

    Raises:
        OSError: the bucket refuses one of them, or does not answer.
        CheckpointError: it gives other bytes back, or the configuration is wrong.
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
