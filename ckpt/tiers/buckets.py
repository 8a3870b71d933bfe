"""Parses the URL of a bucket and opens it: S3 by boto3, Google Cloud Storage and Azure Blob Storage by obstore.

docs/adr/0008-s3-stays-with-boto3.md has the reasons and figures.
"""

from __future__ import annotations

import re

from ckpt.errors import ConfigError
from ckpt.tiers.bucket import Bucket
from ckpt.tiers.cloud_bucket import CloudBucket
from ckpt.tiers.s3_bucket import S3Bucket
from ckpt.tiers.s3_client import S3Options
from ckpt.tiers.throttle import Throttle

SCHEMES = ("s3", "gs", "az")

_URL = re.compile(
    r"(?:(s3|az)://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])|(gs)://([a-z0-9][a-z0-9._-]{1,61}[a-z0-9]))(?:/(.*))?"
)


def split_url(url: str) -> tuple[str, str, str]:
    """Split a URL into scheme, bucket and key prefix (without slashes at its ends).

    Raises:
        ConfigError: the URL is not of a bucket.
    """
    match = _URL.fullmatch(url)
    if match is None or not url.isprintable():
        raise ConfigError(
            f"{url!r:.200}: expected s3://bucket/prefix, gs://bucket/prefix or az://container/prefix; "
            "a bucket's name has 3 to 63 lower-case letters, digits, '-' and '.'"
        )
    scheme, name = (match[1], match[2]) if match[1] else (match[3], match[4])
    return scheme, name, (match[5] or "").strip("/")


def open_bucket(url: str, options: S3Options, throttle: Throttle) -> Bucket:
    """The bucket that a URL names. Makes no request yet."""
    scheme, name, _ = split_url(url)
    return S3Bucket(name, options, throttle) if scheme == "s3" else CloudBucket(scheme, name, options, throttle)
