"""A bucket of Google Cloud Storage or a container of Azure Blob Storage, through obstore."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cached_property
from typing import Any

from ckpt.errors import ConfigError, CorruptError
from ckpt.tiers.bucket import MAX_SMALL_BYTES, Bucket, ObjectPart, cut
from ckpt.tiers.s3_client import AccessError, S3Options, connections
from ckpt.tiers.throttle import Throttle

_TIMEOUT_S = 60


class CloudBucket(Bucket):
    """A bucket or container; see `ckpt.tiers.bucket.Bucket` for the contract.

    Credentials come from obstore's environment variables.
    """

    def __init__(self, scheme: str, name: str, options: S3Options, throttle: Throttle) -> None:
        """`scheme`: gs or az."""
        super().__init__(name, options, throttle)
        self.scheme = scheme

    def put(self, key: str, data: bytes | bytearray) -> None:
        self._throttle.take(len(data))
        with self._errors(key) as (store, obstore):
            obstore.put(store, key, bytes(data), use_multipart=False)

    def _put_parts(self, key: str, pieces: Sequence[ObjectPart], size: int, part_bytes: int) -> None:
        def bodies() -> Iterator[bytes]:
            for start in range(0, size, part_bytes):
                body = cut(pieces, start, bytearray(min(part_bytes, size - start)))
                self._throttle.take(len(body))
                yield bytes(body)

        with self._errors(key) as (store, obstore):
            obstore.put(store, key, bodies(), use_multipart=True, chunk_size=part_bytes, max_concurrency=connections())

    def copy(self, key: str, new_key: str) -> None:
        with self._errors(key) as (store, obstore):
            obstore.copy(store, key, new_key)

    def get(self, key: str, max_bytes: int = MAX_SMALL_BYTES) -> bytes:
        with self._errors(key) as (store, obstore):
            answer = obstore.get(store, key)
            if (size := answer.meta["size"]) > max_bytes:
                raise CorruptError(f"{self._url(key)}: {size} bytes, expected at most {max_bytes}")
            return bytes(answer.bytes())

    def get_into(self, key: str, start: int, into: memoryview) -> None:
        if len(into) and (size := self._size(key)) < start + len(into):  # obstore has no error of its own for this
            raise CorruptError(f"{self._url(key)}: {size} bytes, expected at least {start + len(into)}")
        super().get_into(key, start, into)

    def _range(self, key: str, first: int, nbytes: int) -> memoryview:
        with self._errors(key) as (store, obstore):
            return memoryview(obstore.get_range(store, key, start=first, length=nbytes))

    def _head(self, key: str) -> None:
        self._size(key)

    def _size(self, key: str) -> int:
        with self._errors(key) as (store, obstore):
            return int(obstore.head(store, key)["size"])

    def anything(self, prefix: str) -> bool:
        return next(self._keys(prefix, at_once=1), None) is not None

    def directories(self, prefix: str) -> set[str]:
        inside, _, _ = prefix.rpartition("/")
        with self._errors(prefix) as (store, obstore):
            found = obstore.list_with_delimiter(store, inside or None)["common_prefixes"]
        return {f"{path.rstrip('/')}/".removeprefix(prefix).rstrip("/") for path in found if path.startswith(prefix)}

    def keys(self, prefix: str) -> list[str]:
        return list(self._keys(prefix))

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            with suppress(FileNotFoundError), self._errors(key) as (store, obstore):
                obstore.delete(store, key)

    def uploads(self, prefix: str) -> list[tuple[str, str]]:
        """Always empty: Azure drops uncommitted blocks itself, and obstore cannot list multipart uploads of Google."""
        return []

    def abort(self, key: str, upload: str) -> None:
        """Does nothing; see `uploads`."""

    def _keys(self, prefix: str, at_once: int = 1000) -> Iterator[str]:
        inside, _, _ = prefix.rpartition("/")  # obstore lists whole directories
        with self._errors(prefix) as (store, obstore):
            for page in obstore.list(store, inside or None, chunk_size=at_once):
                yield from (entry["path"] for entry in page if entry["path"].startswith(prefix))

    @cached_property
    def _store(self) -> Any:
        try:
            from obstore.store import AzureStore, GCSStore
        except ImportError:
            raise ConfigError(
                f"{self.scheme}://: obstore is not installed; pip install 'holdfast-hpc[cloud]'"
            ) from None
        endpoint = self._options.endpoint_url
        common: dict[str, Any] = {
            "client_options": {"timeout": timedelta(seconds=_TIMEOUT_S), "allow_http": bool(endpoint)},
            "retry_config": {"max_retries": self._options.attempts - 1},
        }
        if self.scheme == "gs":
            return GCSStore(self._name, **common, **({"base_url": endpoint} if endpoint else {}))
        return AzureStore(self._name, **common, **({"endpoint": endpoint} if endpoint else {}))

    @contextmanager
    def _errors(self, key: str) -> Iterator[tuple[Any, Any]]:
        """Yields the store and the module obstore. Converts obstore's errors to OSError with one line and the URL."""
        store = self._store
        import obstore
        from obstore import exceptions

        try:
            yield store, obstore
        except FileNotFoundError:  # as obstore raises it
            raise FileNotFoundError(f"{self._url(key)}: there is no such object") from None
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            raise AccessError(f"{self._url(key)}: {_line(error)}; look at the credentials' rights") from None
        except exceptions.BaseError as error:
            raise OSError(f"{self._url(key)}: {_line(error)}") from None


def _line(error: Exception) -> str:
    return f"{' '.join(str(error).split()):.300}"
