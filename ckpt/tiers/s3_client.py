"""Makes the S3 client and translates its errors. boto3 is imported on first use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from ckpt.errors import ConfigError, CorruptError

ATTEMPTS = 8  # of one request, with the first; "adaptive" also slows all requests after 503 SlowDown
_CONNECTIONS = 6  # S3 limits each to about 5 Gbit/s
_CONNECT_S = 10
_READ_S = 60

_REFUSED = {
    "NoSuchBucket", "401", "403", "AccessDenied", "AllAccessDisabled", "AuthorizationHeaderMalformed", "ExpiredToken",
    "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch",
}  # fmt: skip
_UNSUPPORTED = {"InvalidArgument", "InvalidRequest", "NotImplemented", "MalformedTrailerError"}
_REDIRECTED = "the server redirects every request (status 301, 302 or 307); correct endpoint_url and region"
_ABSENT = {"404", "NoSuchKey", "NotFound", "NoSuchUpload"}  # not NoSuchBucket, which is a configuration error


class AccessError(OSError):
    """The bucket does not exist, or these credentials may not use it. A retry does not help."""


@dataclass(frozen=True, kw_only=True)
class S3Options:
    """The options for requests. Credentials come from boto3's standard chain: environment, files, instance role."""

    endpoint_url: str | None = None
    region: str | None = None
    path_style: bool | None = None  # https://host/bucket/key or https://bucket.host/key; None: boto3's default
    sse: str | None = None  # AES256 or aws:kms
    sse_kms_key_id: str | None = None
    bucket_owner: str | None = None  # AWS account id; requests to a bucket of another account are refused
    attempts: int = ATTEMPTS

    @property
    def encryption(self) -> dict[str, str]:
        """The arguments of every call that makes an object."""
        given = {"ServerSideEncryption": self.sse, "SSEKMSKeyId": self.sse_kms_key_id}
        return {name: value for name, value in given.items() if value}


def connections() -> int:
    """The number of parallel connections.

    More than the number of cores does not help, and each needs memory for a part.
    """
    return max(2, min(_CONNECTIONS, len(os.sched_getaffinity(0))))


@contextmanager
def telling(where: str) -> Iterator[None]:
    """Translates boto3's errors to an OSError with one line that names the place; FileNotFoundError only for missing
    objects."""
    try:
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            HTTPClientError,
            NoCredentialsError,
            NoRegionError,
            PartialCredentialsError,
            ProfileNotFound,
        )
        from urllib3.exceptions import HTTPError
    except ImportError:
        raise ConfigError("s3: boto3 is not installed; pip install 'holdfast-hpc[s3]'") from None
    try:
        yield
    except ClientError as error:
        code, message = (str(error.response.get("Error", {}).get(key, "")) for key in ("Code", "Message"))
        if code in _ABSENT:
            raise FileNotFoundError(f"{where}: the object does not exist") from None
        if code == "InvalidRange":
            raise CorruptError(f"{where}: is shorter than its manifest says") from None
        text = " ".join(f"{error.operation_name}: {code} {message}".split())
        if code in _REFUSED:
            advice = "create it, or correct the URL" if code == "NoSuchBucket" else "look at the credentials' rights"
            raise AccessError(f"{where}: {text:.300}; {advice}") from None
        if code in _UNSUPPORTED and "checksum" in text.lower():
            text = f"{text:.200}; set AWS_REQUEST_CHECKSUM_CALCULATION=when_required for servers without checksums"
        raise OSError(f"{where}: {text:.300}") from None
    except (NoCredentialsError, PartialCredentialsError, NoRegionError, ProfileNotFound) as error:
        raise AccessError(f"{where}: {' '.join(str(error).split()):.300}") from None
    except RecursionError:  # botocore asks where the bucket is at each redirect, and is redirected again
        raise OSError(f"{where}: {_REDIRECTED}") from None
    except HTTPClientError as error:
        inner = error.kwargs.get("error")
        text = _REDIRECTED if isinstance(inner, RecursionError) else f"{error} {type(inner).__name__}"
        raise OSError(f"{where}: {' '.join(text.split()):.300}") from None
    except (BotoCoreError, HTTPError) as error:  # urllib3's: botocore does not translate a TLS failure within a body
        raise OSError(f"{where}: {' '.join(str(error).split()):.300}") from None


def broke_off(error: Exception) -> bool:
    """Whether the body of a response ended too early, for example because the connection was lost."""
    from botocore.exceptions import IncompleteReadError, ReadTimeoutError, ResponseStreamingError
    from urllib3.exceptions import HTTPError

    kinds = (IncompleteReadError, ReadTimeoutError, ResponseStreamingError, HTTPError, ConnectionError)
    return isinstance(error, kinds)


def make_client(options: S3Options) -> Any:
    """A boto3 client, which is thread-safe. Slow, because it imports boto3."""
    import boto3
    import botocore.session
    from botocore.config import Config

    with telling("s3"):
        core = botocore.session.get_session()  # a separate session, because the default one is not thread-safe
        core.register_component("data_loader", _service_models(core.get_config_variable("data_path")))
        s3: dict[str, Any] = {}
        if options.path_style is not None:
            s3["addressing_style"] = "path" if options.path_style else "virtual"
        if "payload_signing_enabled" not in (core.get_config_variable("s3") or {}):
            # Bodies have a CRC-32 in a signed header. Without TLS botocore would also sign their SHA-256. That costs
            # more than everything else together, and nothing protects reads on such a connection anyway.
            s3["payload_signing_enabled"] = False
        config = Config(
            retries={"mode": "adaptive", "total_max_attempts": options.attempts},
            connect_timeout=_CONNECT_S,
            read_timeout=_READ_S,
            max_pool_connections=2 * connections(),  # a write and a read may run at once
            s3=s3,
            response_checksum_validation="when_required",  # of whole objects; Holdfast verifies every block itself
        )
        session = boto3.session.Session(botocore_session=core)
        try:
            client = session.client("s3", endpoint_url=options.endpoint_url, region_name=options.region, config=config)
        except ValueError as error:  # for example of AWS_ENDPOINT_URL
            raise ConfigError(f"s3: {error}; expected an endpoint that begins with http:// or https://") from None
        if options.bucket_owner is not None:
            client.meta.events.register("provide-client-params.s3", _expecting(options.bucket_owner))
        return client


def has_checksums(client: Any) -> bool:
    """Whether requests have checksums of their bodies; AWS_REQUEST_CHECKSUM_CALCULATION=when_required turns them off.

    Some servers refuse them. Holdfast verifies every block that it reads with its own checksums.
    """
    return bool(client.meta.config.request_checksum_calculation != "when_required")


def _expecting(owner: str) -> Any:
    """Adds the expected owner of the bucket to every request that can have it."""

    def add(params: dict[str, Any], model: Any, **_: Any) -> dict[str, Any]:
        names = ("ExpectedBucketOwner", "ExpectedSourceBucketOwner")
        return params | {name: owner for name in names if name in model.input_shape.members}

    return add


@cache
def _service_models(search_path: str | None) -> Any:
    """botocore's loader of service models, with its cache. Reading them takes most of the time to make a client."""
    from botocore.loaders import create_loader

    return create_loader(search_path)
