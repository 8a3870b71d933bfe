"""The S3 tier: keys below `s3://bucket/prefix`, named like the files of the shared tier (posix.py)."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Sequence

from ckpt.errors import NamespaceError
from ckpt.format.lasting import NOTHING_ELSE, Lasting
from ckpt.format.manifest import NAME, ShardPlace
from ckpt.format.shard_record import MAX_RECORD_BYTES, SaveId
from ckpt.tiers.buckets import open_bucket, split_url
from ckpt.tiers.catalog import directory_name
from ckpt.tiers.mark import MARK, DamagedMark, Mark, check_mark, new_mark, parse_mark
from ckpt.tiers.quarantine import REASON, quarantined_name, reason_json
from ckpt.tiers.s3_client import S3Options, connections
from ckpt.tiers.throttle import Throttle
from ckpt.tiers.tier import Removed, Tier

log = logging.getLogger(__name__)


class S3Tier(Tier):
    """One namespace's keys in a bucket; see `ckpt.tiers.tier.Tier` for the contract."""

    kind = "s3"

    def __init__(
        self, url: str, namespace: str, options: S3Options | None = None, throttle: Throttle | None = None
    ) -> None:
        self.namespace = namespace
        self.url = f"{url.rstrip('/')}/{namespace}"
        _, _, self._prefix = split_url(self.url)
        self._bucket = open_bucket(self.url, options or S3Options(), throttle or Throttle(None))
        self._created_s: float | None = None
        self._at_once = connections()

    @property
    def where(self) -> str:
        return self.url

    def prepare(self) -> float:
        """Put the mark, or check the existing one. Asks the bucket once per process."""
        if self._created_s is None:
            try:
                mark = self._mark()
                if mark is None and self._bucket.anything(f"{self._prefix}/"):
                    mark = self._mark()  # another process may just have put it
                    if mark is None:
                        raise NamespaceError(
                            f"{self.url}: holds other objects and no {MARK}; choose another prefix or namespace"
                        )
            except DamagedMark as error:
                log.warning("%s", error)
                mark = None
            if mark is None:
                data = new_mark(self.namespace)
                self._bucket.put(self._key(MARK), data)
                mark = parse_mark(data, self.url)
            self._created_s = mark.created_s
        return self._created_s

    def check(self) -> None:
        """Check the mark. The bucket's own permissions say who may read and write."""
        with contextlib.suppress(DamagedMark):  # it says nothing
            self._mark()

    def read(self, save: SaveId, place: ShardPlace, start: int, into: memoryview) -> None:
        """Read ranges of a few MiB in parallel."""
        self._bucket.get_into(self._key(directory_name(save), place.file), place.offset + start, into)

    def data_path(self, save: SaveId, file: str) -> None:
        """None: objects cannot be mapped."""

    def quarantine(self, name: str, reason: str) -> str:
        """Copy the step on the server to the new name, then remove the old one, its manifest first."""
        existing = self._directories()
        new_name = quarantined_name(name, existing)
        self._bucket.put(self._key(new_name, REASON), reason_json(reason))
        keys = self._bucket.keys(self._key(name, ""))
        for key in keys:
            self._bucket.copy(key, self._key(new_name, key.removeprefix(self._key(name, ""))))
        self._bucket.delete([self._key(name, NAME)])
        self._bucket.delete(keys)
        return f"{self.url}/{new_name}"

    def retain(
        self,
        keep: int,
        complete: Collection[SaveId] | None = None,
        removed: Removed = lambda name: None,
        *,
        left: bool = False,
        lasting: Lasting = NOTHING_ELSE,
    ) -> list[str]:
        """Remove superfluous steps. Each manifest is removed first, so that no reader finds a step half deleted.

        A step that was pinned meanwhile gets its manifest back: a pin is made before its step is looked at, and is
        looked for after the manifest has gone.

        A killed upload leaves parts that are not objects but cost storage. They are removed with their step.
        """
        try:
            uploads = self._bucket.uploads(f"{self._prefix}/")
        except OSError as error:  # some servers and some permissions do not allow to list them
            log.warning("cannot list incomplete uploads, so none are removed: %s", error)
            uploads = []
        names = self._directories()
        names |= {key.removeprefix(f"{self._prefix}/").partition("/")[0] for key, _ in uploads}
        gone = []
        for entry in self._superfluous(names, keep, complete, left=left, lasting=lasting):
            if not self._withdraw(entry.name):
                continue
            gone.append(entry.name)
            inside = self._key(entry.name, "")
            self._bucket.delete(self._bucket.keys(inside))
            for key, upload in uploads:
                if key.startswith(inside):
                    self._bucket.abort(key, upload)
            removed(entry.name)
        return gone

    def _withdraw(self, name: str) -> bool:
        """Removes a step's manifest; puts it back if the step is pinned now, and returns False."""
        manifest, key = b"", self._key(name, NAME)
        with contextlib.suppress(FileNotFoundError):
            manifest = self._bucket.get(key, MAX_RECORD_BYTES)
        self._bucket.delete([key])
        if name not in self.pins():
            return True
        if manifest:
            self._bucket.put(key, manifest)
        return False

    def _mark(self) -> Mark | None:
        """The mark, which is of this namespace and user; None if there is none."""
        try:
            mark = parse_mark(self._bucket.get(self._key(MARK)), f"{self.url}/{MARK}")
        except FileNotFoundError:
            return None
        check_mark(mark, self.url, self.namespace)
        return mark

    def _get(self, path: str, max_bytes: int) -> bytes:
        return self._bucket.get(self._key(path), max_bytes)

    def _put(self, path: str, data: bytes, *, sync: bool = True) -> None:
        self._bucket.put(self._key(path), data)

    def _put_shards(self, save: SaveId, file: str, pieces: Sequence[tuple[int, memoryview]]) -> None:
        """Put a large file in parallel parts."""
        self._bucket.put_pieces(self._key(directory_name(save), file), pieces)

    def _exists(self, path: str) -> bool:
        return self._bucket.exists(self._key(path))

    def _make_directory(self, save: SaveId) -> None:
        """Does nothing: a bucket has no directories."""

    def _make_record(self, name: str) -> None:
        """Does nothing: a bucket has no directories."""

    def _remove_record(self, name: str) -> None:
        self._bucket.delete(self._bucket.keys(self._key(name, "")))

    def _directories(self) -> set[str]:
        return self._bucket.directories(f"{self._prefix}/")

    def _key(self, *parts: str) -> str:
        return "/".join((self._prefix, *parts))
