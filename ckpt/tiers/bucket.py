"""The interface of a bucket: whole objects, large objects in parallel parts, ranges and listings.

`Bucket` implements what is common to all services. A service implements the abstract methods and calls none of another
service's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from ckpt.errors import CorruptError
from ckpt.tiers.parallel import in_parallel
from ckpt.tiers.s3_client import S3Options, connections
from ckpt.tiers.throttle import Throttle

PART_BYTES = 16 << 20  # each connection holds one part in memory
RANGE_BYTES = 8 << 20  # of one GET
_MAX_PARTS = 10_000
MAX_SMALL_BYTES = 1 << 20

ObjectPart = tuple[int, memoryview]  # offset in the object, and bytes


class Bucket(ABC):
    """Blocking calls, from any thread. They raise OSError, and FileNotFoundError if the object does not exist.

    Every error names the object. What is written appears whole or not at all, and is there once the call has returned.
    """

    scheme: str

    def __init__(self, name: str, options: S3Options, throttle: Throttle) -> None:
        self._name = name
        self._options = options
        self._throttle = throttle

    @abstractmethod
    def put(self, key: str, data: bytes | bytearray) -> None:
        """Put a small object in one request."""

    def put_pieces(self, key: str, pieces: Sequence[ObjectPart]) -> None:
        """Put an object from pieces of memory, with zeros between them."""
        pieces = sorted(pieces, key=lambda piece: piece[0])
        size = max((offset + len(data) for offset, data in pieces), default=0)
        part_bytes = part_bytes_of(size)
        if size <= part_bytes:
            self.put(key, cut(pieces, 0, bytearray(size)))
            return
        self._put_parts(key, pieces, size, part_bytes)

    @abstractmethod
    def copy(self, key: str, new_key: str) -> None:
        """Copy an object on the server."""

    @abstractmethod
    def get(self, key: str, max_bytes: int = MAX_SMALL_BYTES) -> bytes:
        """Get a whole object. Raises CorruptError if it is larger than `max_bytes`."""

    def get_into(self, key: str, start: int, into: memoryview) -> None:
        """Fill memory with an object's bytes from `start` on. Raises CorruptError if the object is too short."""

        def get_range(offset: int) -> None:
            piece = into[offset : offset + RANGE_BYTES]
            first = start + offset
            data = self._range(key, first, len(piece))
            if len(data) != len(piece):
                raise CorruptError(
                    f"{self._url(key)}: got {len(data)} bytes from byte {first} on, expected {len(piece)}"
                )
            piece[:] = data

        in_parallel(get_range, range(0, len(into), RANGE_BYTES), connections())

    def exists(self, key: str) -> bool:
        """Whether the service says that the object exists. Errors are raised."""
        try:
            self._head(key)
        except FileNotFoundError:
            return False
        return True

    @abstractmethod
    def anything(self, prefix: str) -> bool:
        """Whether any key has this prefix. Lists one key at most."""

    @abstractmethod
    def directories(self, prefix: str) -> set[str]:
        """The names after a prefix, up to the next slash. `prefix` ends with a slash, or is empty."""

    @abstractmethod
    def keys(self, prefix: str) -> list[str]:
        """All keys with this prefix."""

    @abstractmethod
    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects. Missing objects are ignored."""

    @abstractmethod
    def uploads(self, prefix: str) -> list[tuple[str, str]]:
        """The incomplete multipart uploads, as (key, upload id); empty if the service removes them itself."""

    @abstractmethod
    def abort(self, key: str, upload: str) -> None:
        """Abort a multipart upload of `uploads`, which removes its parts."""

    @abstractmethod
    def _put_parts(self, key: str, pieces: Sequence[ObjectPart], size: int, part_bytes: int) -> None:
        """Put a large object in parallel parts. `pieces` are in order; each part is made by `cut`."""

    @abstractmethod
    def _range(self, key: str, first: int, nbytes: int) -> bytes | memoryview:
        """The bytes of an object from `first` on; fewer if the object ends before."""

    @abstractmethod
    def _head(self, key: str) -> None:
        """Raise FileNotFoundError if the object does not exist."""

    def _url(self, key: str) -> str:
        return f"{self.scheme}://{self._name}/{key}"


def part_bytes_of(size: int) -> int:
    """The size of an object's parts. All services limit the number of parts to 10,000."""
    return max(PART_BYTES, -(-size // _MAX_PARTS))


def cut(pieces: Iterable[ObjectPart], start: int, body: bytearray) -> bytearray:
    """Fill `body` with the object's bytes from `start` on. `pieces` are in order."""
    end, done = start + len(body), start
    with memoryview(body) as into:  # assigning to a slice of a bytearray would copy first
        for offset, data in pieces:
            first, last = max(start, offset), min(end, offset + len(data))
            if first < last:
                into[done - start : first - start] = bytes(first - done)
                into[first - start : last - start] = data[first - offset : last - offset]
                done = last
        into[done - start :] = bytes(end - done)
    return body
