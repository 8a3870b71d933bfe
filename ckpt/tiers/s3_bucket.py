"""A bucket of S3 or of a server that speaks its protocol, through boto3."""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

from ckpt.errors import CorruptError
from ckpt.tiers.bucket import MAX_SMALL_BYTES, Bucket, ObjectPart, cut
from ckpt.tiers.parallel import in_parallel
from ckpt.tiers.s3_client import broke_off, connections, has_checksums, make_client, telling

_DELETE_KEYS = 1000  # of one request

log = logging.getLogger(__name__)


class S3Bucket(Bucket):
    """A bucket; see `ckpt.tiers.bucket.Bucket` for the contract."""

    scheme = "s3"

    @cached_property
    def _client(self) -> Any:
        return make_client(self._options)

    def put(self, key: str, data: bytes | bytearray) -> None:
        self._throttle.take(len(data))
        with telling(self._url(key)):
            self._client.put_object(Bucket=self._name, Key=key, Body=data, **self._options.encryption)

    def _put_parts(self, key: str, pieces: Sequence[ObjectPart], size: int, part_bytes: int) -> None:
        with_sums = has_checksums(self._client)
        with telling(self._url(key)):
            algorithm = {"ChecksumAlgorithm": "CRC32"} if with_sums else {}
            answer = self._client.create_multipart_upload(
                Bucket=self._name, Key=key, **algorithm, **self._options.encryption
            )
            upload = self._given(answer, "UploadId", key)

        bodies: list[bytearray] = []  # buffers of earlier parts: reusing memory costs less than allocating it

        def put_part(number: int) -> dict[str, Any]:
            start = (number - 1) * part_bytes
            nbytes = min(size - start, part_bytes)
            try:
                body = bodies.pop() if nbytes == part_bytes else bytearray(nbytes)
            except IndexError:
                body = bytearray(nbytes)
            cut(pieces, start, body)
            sum32 = {"ChecksumCRC32": _crc32_header(body)} if with_sums else {}
            self._throttle.take(nbytes)
            with telling(f"{self._url(key)} part {number}"):
                answer = self._client.upload_part(
                    Bucket=self._name, Key=key, UploadId=upload, PartNumber=number, Body=body, **sum32
                )
            bodies.append(body)
            sums = {name: answer[name] for name in ("ETag", "ChecksumCRC32") if name in answer}
            return {"PartNumber": number, **sums}

        try:
            parts = in_parallel(put_part, range(1, -(-size // part_bytes) + 1), connections())
            with telling(self._url(key)):
                self._client.complete_multipart_upload(
                    Bucket=self._name, Key=key, UploadId=upload, MultipartUpload={"Parts": parts}
                )
        except BaseException:
            with suppress(OSError):
                self.abort(key, upload)
            raise

    def copy(self, key: str, new_key: str) -> None:
        """Copy in parts if the object is large."""
        source = {"Bucket": self._name, "Key": key}
        with telling(self._url(key)):
            self._client.copy(source, self._name, new_key, ExtraArgs=self._options.encryption)

    def get(self, key: str, max_bytes: int = MAX_SMALL_BYTES) -> bytes:
        with telling(self._url(key)):
            return self._body(key, max_bytes)

    def _range(self, key: str, first: int, nbytes: int) -> bytes | memoryview:
        with telling(self._url(key)):
            return self._body(key, nbytes, Range=f"bytes={first}-{first + nbytes - 1}")

    def _body(self, key: str, max_bytes: int, **arguments: str) -> bytes:
        """The bytes of an object, or of a range.

        Requests the body again if it breaks off, which botocore does not do.
        """
        left = self._options.attempts
        while True:
            left -= 1
            answer = self._client.get_object(Bucket=self._name, Key=key, **arguments)
            body, nbytes = answer["Body"], answer.get("ContentLength", 0)
            try:
                if nbytes <= max_bytes:
                    # An answer in chunks does not say how long it is.
                    data = bytes(body.read() if "ContentLength" in answer else body.read(max_bytes + 1))
                    if (nbytes := len(data)) <= max_bytes:
                        return data
            except Exception as error:
                body.close()
                if left <= 0 or not broke_off(error):
                    raise
                log.info("%s: %s; requesting it again", self._url(key), " ".join(str(error).split()))
                continue
            body.close()
            raise CorruptError(f"{self._url(key)}: {nbytes} bytes, expected at most {max_bytes}")

    def _head(self, key: str) -> None:
        with telling(self._url(key)):
            self._client.head_object(Bucket=self._name, Key=key)

    def anything(self, prefix: str) -> bool:
        with telling(self._url(prefix)):
            answer = self._client.list_objects_v2(Bucket=self._name, Prefix=prefix, MaxKeys=1)
        return bool(answer.get("Contents"))

    def directories(self, prefix: str) -> set[str]:
        pages = self._pages("list_objects_v2", prefix, Delimiter="/")
        return {
            common["Prefix"].removeprefix(prefix).rstrip("/")
            for page in pages
            for common in page.get("CommonPrefixes", [])
        }

    def keys(self, prefix: str) -> list[str]:
        return [entry["Key"] for page in self._pages("list_objects_v2", prefix) for entry in page.get("Contents", [])]

    def delete(self, keys: Sequence[str]) -> None:
        """One request for many objects must have a checksum."""
        if not has_checksums(self._client):
            in_parallel(self._delete_one, keys, connections())
            return
        for first in range(0, len(keys), _DELETE_KEYS):
            batch = keys[first : first + _DELETE_KEYS]
            with telling(self._url(batch[0])):
                answer = self._client.delete_objects(
                    Bucket=self._name, Delete={"Objects": [{"Key": key} for key in batch], "Quiet": True}
                )
            for error in answer.get("Errors", []):
                raise OSError(f"{self._url(error.get('Key', '?'))}: {error.get('Code')} {error.get('Message')}")

    def _delete_one(self, key: str) -> None:
        with suppress(FileNotFoundError), telling(self._url(key)):
            self._client.delete_object(Bucket=self._name, Key=key)

    def uploads(self, prefix: str) -> list[tuple[str, str]]:
        try:
            pages = list(self._pages("list_multipart_uploads", prefix))
        except FileNotFoundError:  # rclone's answer if there are none
            return []
        return [(entry["Key"], entry["UploadId"]) for page in pages for entry in page.get("Uploads", [])]

    def abort(self, key: str, upload: str) -> None:
        with suppress(FileNotFoundError), telling(self._url(key)):
            self._client.abort_multipart_upload(Bucket=self._name, Key=key, UploadId=upload)

    def _pages(self, operation: str, prefix: str, **arguments: str) -> Iterator[dict[str, Any]]:
        with telling(self._url(prefix)):
            yield from self._client.get_paginator(operation).paginate(Bucket=self._name, Prefix=prefix, **arguments)

    def _given(self, answer: dict[str, Any], name: str, key: str) -> str:
        """A field that S3 always gives. Something before a server may answer in its place, for example a proxy."""
        if not answer.get(name):
            raise OSError(f"{self._url(key)}: the server's answer has no {name}; is endpoint_url that of an S3 server?")
        return str(answer[name])


def _crc32_header(body: bytearray) -> str:
    """The CRC-32 with which S3 checks a part. botocore would compute it with zlib, and read the body twice."""
    from isal import isal_zlib

    return base64.b64encode(isal_zlib.crc32(body).to_bytes(4, "big")).decode()
