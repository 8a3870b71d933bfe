"""A bucket of Google Cloud Storage or a container of Azure Blob Storage, through obstore; as `s3_bucket.Bucket`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cached_property
from typing import Any

from ckpt.errors import ConfigError, CorruptError
from ckpt.tiers.parallel import in_parallel
from ckpt.tiers.s3_bucket import MAX_SMALL_BYTES, RANGE_BYTES, Piece, cut, part_bytes_of
from ckpt.tiers.s3_client import AccessError, S3Options, connections
from ckpt.tiers.throttle import Throttle

_TIMEOUT_S = 60


class CloudBucket:
    """A bucket or container. All methods block, and may be called from any thread.

    They raise OSError, and FileNotFoundError for an object that does not exist.

    Args:
        scheme: gs or az.
        name: name of the bucket or container.
        options: the endpoint and the number of attempts; credentials come from obstore's environment variables.
        throttle: limits the rate at which this process writes.
    """

    def __init__(self, scheme: str, name: str, options: S3Options, throttle: Throttle) -> None:
        self._scheme = scheme
        self._name = name
        self._options = options
        self._throttle = throttle

    def put(self, key: str, data: bytes | bytearray) -> None:
        """Write a small object in one request."""
        self._throttle.take(len(data))
        with self._errors(key) as (store, obstore):
            obstore.put(store, key, bytes(data), use_multipart=False)

    def put_pieces(self, key: str, pieces: Sequence[Piece]) -> None:
        """Write an object from pieces of memory, with zeros in the gaps. The object appears complete or not at all."""
        pieces = sorted(pieces, key=lambda piece: piece[0])
        size = max((offset + len(data) for offset, data in pieces), default=0)
        part_bytes = part_bytes_of(size)
        if size <= part_bytes:
            self.put(key, cut(pieces, 0, bytearray(size)))
            return

        def bodies() -> Iterator[bytes]:
            for start in range(0, size, part_bytes):
                body = cut(pieces, start, bytearray(min(part_bytes, size - start)))
                self._throttle.take(len(body))
                yield bytes(body)

        with self._errors(key) as (store, obstore):
            obstore.put(store, key, bodies(), use_multipart=True, chunk_size=part_bytes, max_concurrency=connections())

    def copy(self, key: str, new_key: str) -> None:
        """Have the server copy an object."""
        with self._errors(key) as (store, obstore):
            obstore.copy(store, key, new_key)

    def get(self, key: str, max_bytes: int = MAX_SMALL_BYTES) -> bytes:
        """Read a whole object. Raises CorruptError if it is larger than `max_bytes`."""
        with self._errors(key) as (store, obstore):
            answer = obstore.get(store, key)
            if (size := answer.meta["size"]) > max_bytes:
                raise CorruptError(f"{self._url(key)}: {size} bytes, expected at most {max_bytes}")
            return bytes(answer.bytes())

    def get_into(self, key: str, start: int, into: memoryview) -> None:
        """Fill memory with an object's bytes from `start` on. Raises CorruptError if the object is too short."""

        def get_range(offset: int) -> None:
            piece = into[offset : offset + RANGE_BYTES]
            first = start + offset
            with self._errors(key) as (store, obstore):
                size = obstore.head(store, key)["size"] if not offset else first + len(piece)
                if size < first + len(piece):
                    raise CorruptError(f"{self._url(key)}: {size} bytes, expected at least {first + len(piece)}")
                data = obstore.get_range(store, key, start=first, length=len(piece))
            if len(data) != len(piece):
                raise CorruptError(
                    f"{self._url(key)}: got {len(data)} bytes from byte {first} on, expected {len(piece)}"
                )
            piece[:] = memoryview(data)

        in_parallel(get_range, range(0, len(into), RANGE_BYTES), connections())

    def exists(self, key: str) -> bool:
        """Whether the object exists. Raises OSError if the server does not answer."""
        try:
            with self._errors(key) as (store, obstore):
                obstore.head(store, key)
        except FileNotFoundError:
            return False
        return True

    def anything(self, prefix: str) -> bool:
        """Whether any object's key begins with a prefix."""
        return next(self._keys(prefix, at_once=1), None) is not None

    def directories(self, prefix: str) -> set[str]:
        """The names that follow a prefix, up to the next slash."""
        inside, _, _ = prefix.rpartition("/")
        with self._errors(prefix) as (store, obstore):
            found = obstore.list_with_delimiter(store, inside or None)["common_prefixes"]
        return {f"{path.rstrip('/')}/".removeprefix(prefix).rstrip("/") for path in found if path.startswith(prefix)}

    def keys(self, prefix: str) -> list[str]:
        """All keys that begin with a prefix."""
        return list(self._keys(prefix))

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects. Those that do not exist are no error."""
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
                f"{self._scheme}://: obstore is not installed; pip install 'holdfast-hpc[cloud]'"
            ) from None
        endpoint = self._options.endpoint_url
        common: dict[str, Any] = {
            "client_options": {"timeout": timedelta(seconds=_TIMEOUT_S), "allow_http": bool(endpoint)},
            "retry_config": {"max_retries": self._options.attempts - 1},
        }
        if self._scheme == "gs":
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

    def _url(self, key: str) -> str:
        return f"{self._scheme}://{self._name}/{key}"


def _line(error: Exception) -> str:
    return f"{' '.join(str(error).split()):.300}"
