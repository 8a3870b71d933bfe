"""The S3 tier: keys below `s3://bucket/prefix` as the shared tier has files below its path.

<prefix>/<namespace>/holdfast.json                                     whose keys these are
<prefix>/<namespace>/owner.json                                        which live run writes here
<prefix>/<namespace>/step-<step>.a<attempt>.<run tag>/node-NNNNN.data   one node's shards, one after another
<prefix>/<namespace>/step-<step>.a<attempt>.<run tag>/manifest.json     put last: the commit
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Sequence

from ckpt.errors import CheckpointError, CorruptError, NamespaceError
from ckpt.format.manifest import MAX_BYTES, NAME, Manifest, ShardPlace, new_manifest, parse_manifest
from ckpt.format.shard_record import SaveId, ShardRecord, seal_json
from ckpt.tiers.buckets import open_bucket, split_url
from ckpt.tiers.catalog import CatalogEntry, committed, directory_name, entries_of, steps_since
from ckpt.tiers.claim import CLAIM, Claim, parse_claim
from ckpt.tiers.mark import MARK, Mark, check_mark, new_mark, parse_mark
from ckpt.tiers.posix import node_places
from ckpt.tiers.quarantine import QUARANTINED, REASON, parse_reason, quarantined_name, reason_json
from ckpt.tiers.retention import superfluous
from ckpt.tiers.s3_client import S3Options, connections
from ckpt.tiers.throttle import Throttle
from ckpt.tiers.tier import Removed

log = logging.getLogger(__name__)


class S3Tier:
    """One namespace's keys in a bucket; see `ckpt.tiers.tier.Tier` for the contract."""

    node_local = False

    def __init__(
        self, url: str, namespace: str, options: S3Options | None = None, throttle: Throttle | None = None
    ) -> None:
        """
        Args:
            url: s3://bucket/prefix.
            namespace: name of our part below it.
            options: how to reach the bucket.
            throttle: limits how fast this process writes.
        """
        self.namespace = namespace
        self.url = f"{url.rstrip('/')}/{namespace}"
        _, _, self._prefix = split_url(self.url)
        self._bucket = open_bucket(self.url, options or S3Options(), throttle or Throttle(None))
        self._created_s: float | None = None

    @property
    def where(self) -> str:
        return self.url

    def prepare(self) -> float:
        """Puts the mark, or checks the one that is there; asks once in the life of this process."""
        if self._created_s is None:
            data = self._mark()
            if data is None and self._bucket.anything(f"{self._prefix}/"):
                data = self._mark()  # that another of us may just have put, before anything else
                if data is None:
                    raise NamespaceError(
                        f"{self.url}: holds other objects and no {MARK}; choose another prefix or namespace"
                    )
            if data is None:
                data = new_mark(self.namespace)
                self._bucket.put(self._key(MARK), data)
            self._created_s = self._check(data).created_s
        return self._created_s

    def check(self) -> None:
        """By the mark; who may read and write there is for the bucket to say."""
        if (data := self._mark()) is not None:
            self._check(data)

    def read_claim(self) -> Claim | None:
        """The claim beside the mark."""
        try:
            data = self._bucket.get(self._key(CLAIM))
        except FileNotFoundError:
            return None
        return parse_claim(data, f"{self.url}/{CLAIM}")

    def write_claim(self, claim: Claim) -> None:
        """One small object."""
        self._bucket.put(self._key(CLAIM), claim.to_bytes())

    def begin(self, save: SaveId) -> None:
        """There are no directories to make."""

    def write_node(
        self, save: SaveId, node_rank: int, shards: Sequence[tuple[ShardRecord, memoryview]]
    ) -> list[ShardPlace]:
        """Puts `node-<rank>.data`, in parallel parts when it is large; may be repeated until the step is committed."""
        return self._write(save, f"node-{node_rank:05d}.data", shards)

    def write_rank(self, save: SaveId, record: ShardRecord, data: memoryview) -> ShardPlace:
        """Puts `rank-<rank>.data`."""
        return self._write(save, f"rank-{record.rank:05d}.data", [(record, data)])[0]

    def leave_note(self, save: SaveId, name: str, data: bytes) -> None:
        """One object."""
        self._bucket.put(self._key(directory_name(save), name), data)

    def notes(self, save: SaveId) -> list[str]:
        """One listing."""
        inside = self._key(directory_name(save), "")
        return [key.removeprefix(inside) for key in self._bucket.keys(inside)]

    def read_note(self, save: SaveId, name: str) -> bytes:
        """One read."""
        return self._bucket.get(self._key(directory_name(save), name), MAX_BYTES)

    def has_since(self, step: int) -> bool:
        """One listing, and a question for each newer step."""
        names = steps_since(self._bucket.directories(f"{self._prefix}/"), step)
        return any(self._bucket.exists(self._key(name, NAME)) for name in names)

    def _write(self, save: SaveId, file: str, shards: Sequence[tuple[ShardRecord, memoryview]]) -> list[ShardPlace]:
        directory = directory_name(save)
        if self._bucket.exists(self._key(directory, NAME)):
            raise CheckpointError(
                f"{self.url}/{directory}: step {save.step} is committed there already; it is never written again"
            )
        places = node_places(file, [record for record, _ in shards])
        pieces = [(place.offset, data) for place, (_, data) in zip(places, shards, strict=True)]
        self._bucket.put_pieces(self._key(directory, file), pieces)
        return places

    def commit(self, save: SaveId, world_size: int, places: Sequence[ShardPlace]) -> Manifest:
        """Puts the manifest: from here on the step is a checkpoint."""
        manifest = new_manifest(save, world_size, time.time(), places)
        self._bucket.put(self._key(directory_name(save), NAME), seal_json(manifest.to_json()))
        return manifest

    def steps(self) -> list[SaveId]:
        """The committed steps, newest first; one with a damaged manifest is logged and left out."""
        return committed(self.catalog(), self.where)

    def catalog(self) -> Iterator[CatalogEntry]:
        """One listing, then one read for each step, several at once."""
        return self._entries(self._bucket.directories(f"{self._prefix}/"))

    def read_manifest(self, save: SaveId) -> Manifest:
        """The manifest of one save."""
        manifest = self._read_manifest(directory_name(save))
        if manifest.save != save or manifest.namespace != self.namespace:
            raise CorruptError(f"{self.url}/{directory_name(save)}: manifest is of {manifest.save}, expected {save}")
        return manifest

    def read(self, save: SaveId, place: ShardPlace, start: int, into: memoryview) -> None:
        """Ranges of a few MiB, several at once."""
        self._bucket.get_into(self._key(directory_name(save), place.file), place.offset + start, into)

    def data_path(self, save: SaveId, file: str) -> None:
        """Objects cannot be mapped."""

    def quarantine(self, name: str, reason: str) -> str:
        """Copied by the server under the new name, then removed under the old one, its manifest first."""
        existing = self._bucket.directories(f"{self._prefix}/")
        new_name = quarantined_name(name, existing)
        self._bucket.put(self._key(new_name, REASON), reason_json(reason))
        keys = self._bucket.keys(self._key(name, ""))
        for key in keys:
            self._bucket.copy(key, self._key(new_name, key.removeprefix(self._key(name, ""))))
        self._bucket.delete([self._key(name, NAME)])
        self._bucket.delete(keys)
        return f"{self.url}/{new_name}"

    def quarantined(self) -> list[tuple[str, str]]:
        names = sorted(QUARANTINED + rest for rest in self._bucket.directories(self._key(QUARANTINED)))
        return [(name, self._reason(name)) for name in names]

    def retain(
        self, keep: int, running: SaveId | None, complete: Collection[SaveId] | None = None,
        removed: Removed = lambda name: None,
    ) -> list[str]:  # fmt: skip
        """Removes superfluous steps: the manifest first, so that none is ever seen half deleted.

        What a killed upload left behind is no object, costs all the same, and goes with its step.
        """
        try:
            uploads = self._bucket.uploads(f"{self._prefix}/")
        except OSError as error:  # some servers, and some permissions, do not let them be listed
            log.warning("uploads that were never completed are not looked for: %s", error)
            uploads = []
        names = self._bucket.directories(f"{self._prefix}/")
        names |= {key.removeprefix(f"{self._prefix}/").partition("/")[0] for key, _ in uploads}
        gone = superfluous(list(self._entries(names)), keep, directory_name(running) if running else None, complete)
        for entry in gone:
            self._bucket.delete([self._key(entry.name, NAME)])
            inside = self._key(entry.name, "")
            self._bucket.delete(self._bucket.keys(inside))
            for key, upload in uploads:
                if key.startswith(inside):
                    self._bucket.abort(key, upload)
            removed(entry.name)
        return [entry.name for entry in gone]

    def _mark(self) -> bytes | None:
        try:
            return self._bucket.get(self._key(MARK))
        except FileNotFoundError:
            return None

    def _check(self, mark_data: bytes) -> Mark:
        mark = parse_mark(mark_data, f"{self.url}/{MARK}")
        check_mark(mark, self.url, self.namespace)
        return mark

    def _reason(self, name: str) -> str:
        try:
            return parse_reason(self._bucket.get(self._key(name, REASON)))
        except FileNotFoundError:
            return parse_reason(b"")

    def _entries(self, names: Collection[str]) -> Iterator[CatalogEntry]:
        return entries_of(names, self.namespace, self._read_manifest, at_once=connections())

    def _read_manifest(self, directory: str) -> Manifest:
        return parse_manifest(self._bucket.get(self._key(directory, NAME), MAX_BYTES))

    def _key(self, *parts: str) -> str:
        return "/".join((self._prefix, *parts))
