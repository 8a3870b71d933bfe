"""The record of a shard in a node's memory: its writer, step, layout and checksums.

The record is written last and removed first. A shard exists only if its record verifies. The file of its bytes may be
longer than the shard, because slots are reused. `ckpt.format.memory_names` has the names of both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ckpt.errors import CorruptError, StateError
from ckpt.format.atomic_files import dump_json, read_regular
from ckpt.format.checksums import BLOCK_BYTES, block_count, checksum
from ckpt.format.lasting import parse_metrics
from ckpt.format.layout import Layout
from ckpt.format.line import FIRST, Line
from ckpt.format.parsing import parsing
from ckpt.format.rank_grid import MAX_RANKS
from holdfast.base.files import durable_write

RECORD_FORMAT = 1
MAX_RECORD_BYTES = 1 << 29  # of a record
_MAX_VALUES = 1 << 23  # of its JSON; each takes up to 100 bytes of memory


@dataclass(frozen=True, kw_only=True, order=True)
class SaveId:
    """The identity of one save of one step.

    An attempt that repeats a step makes a new save; shards of saves never mix.
    """

    step: int
    attempt: int
    run_id: str
    line: Line = FIRST

    @classmethod
    def from_json(cls, value: Any) -> SaveId:
        """Parses the fields of `to_json` in a mapping. Raises CorruptError if one is missing or malformed."""
        try:
            save = cls(step=value["step"], attempt=value["attempt"], run_id=value["run_id"])
            if value.get("line") is not None:
                save = replace(save, line=Line.from_json(value["line"]))
        except (AttributeError, KeyError, TypeError) as error:
            raise CorruptError(f"save id: missing or malformed field {error}") from None
        numbers = (save.step, save.attempt)
        if not isinstance(save.run_id, str) or any(type(n) is not int or not 0 <= n < 1 << 62 for n in numbers):
            raise CorruptError(f"save id: malformed step, attempt or run id {save!r:.200}")
        return save

    def to_json(self) -> dict[str, Any]:
        save = {"step": self.step, "attempt": self.attempt, "run_id": self.run_id}
        return save if self.line == FIRST else save | {"line": self.line.to_json()}

    def continues(self, other: SaveId) -> bool:
        """Whether this save is newer than another one and of its descent: retention may then remove the other one."""
        if self.line.id == other.line.id:
            return (self.step, self.attempt) > (other.step, other.attempt)
        return self.line.has(other.line.id, other.step)


@dataclass(frozen=True, kw_only=True)
class ShardRecord:
    save: SaveId
    namespace: str
    rank: int
    world_size: int
    layout: Layout
    blocks: tuple[str, ...]  # ckpt.format.checksums.checksums of the shard
    flush: bool = False  # whether to write it to every lower tier, whatever its cadence (before a stop)
    metrics: Mapping[str, float] = field(default_factory=dict)  # of the save, the same in all its records

    @property
    def nbytes(self) -> int:
        return self.layout.nbytes

    @property
    def what(self) -> str:
        """For messages."""
        return f"rank {self.rank}"

    def to_json(self) -> dict[str, Any]:
        return {
            "format": RECORD_FORMAT, **self.save.to_json(), "namespace": self.namespace, "rank": self.rank,
            "world_size": self.world_size, "flush": self.flush, "block_bytes": BLOCK_BYTES, "blocks": list(self.blocks),
            "layout": self.layout.to_json(), **({"metrics": dict(self.metrics)} if self.metrics else {}),
        }  # fmt: skip

    @classmethod
    @parsing("shard record")
    def from_json(cls, value: Any) -> ShardRecord:
        """Raises CorruptError if a field is missing, malformed or of another format. 0.2.0 has written `drain`."""
        try:
            if value["format"] != RECORD_FORMAT or value["block_bytes"] != BLOCK_BYTES:
                raise CorruptError(
                    f"shard record: format {value['format']}, blocks of {value['block_bytes']} bytes; "
                    f"expected {RECORD_FORMAT}, {BLOCK_BYTES}"
                )
            record = cls(
                save=SaveId.from_json(value),
                namespace=str(value["namespace"]), rank=int(value["rank"]), world_size=int(value["world_size"]),
                layout=Layout.from_json(value["layout"]), blocks=tuple(map(str, value["blocks"])),
                flush=bool(value["flush" if "flush" in value else "drain"]),
                metrics=parse_metrics(value.get("metrics", {})),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise CorruptError(f"shard record: missing or malformed field: {error}") from None
        if not 0 <= record.rank < record.world_size <= MAX_RANKS or len(record.blocks) != block_count(
            record.layout.nbytes
        ):
            raise CorruptError(
                f"shard record: rank {record.rank} of {record.world_size}, {len(record.blocks)} block checksums"
            )
        if record.layout.last_rank >= record.world_size:
            raise CorruptError(f"shard record: a tensor spread over rank {record.layout.last_rank}, which is none")
        return record


def seal_json(value: dict[str, Any]) -> bytes:
    """JSON with its own checksum on a second line, which shows damage. Raises StateError if no reader would take it."""
    body = dump_json(value)
    if len(body) >= MAX_RECORD_BYTES - 64 or _values_in(body, len(body)) > _MAX_VALUES:
        raise StateError(
            f"record: {len(body)} bytes with {_values_in(body, len(body))} values, expected at most "
            f"{MAX_RECORD_BYTES} and {_MAX_VALUES}; store large lists and texts as arrays or bytes"
        )
    return body + b"\n" + checksum(body).encode() + b"\n"


def unseal_json(data: bytes) -> Any:
    """The value of seal_json. Raises CorruptError if the checksum does not match."""
    end = data.rfind(b"\n")
    start = data.rfind(b"\n", 0, max(end, 0)) + 1
    body = memoryview(data)[: max(start - 1, 0)]  # no copy, because manifests are large
    if not body or checksum(body) != data[start:end].decode("ascii", "replace"):
        raise CorruptError("record does not match its checksum")
    if (values := _values_in(data, len(body))) > _MAX_VALUES or data.find(b"\0", 0, len(body)) >= 0:
        raise CorruptError(f"record: {values} values, expected at most {_MAX_VALUES} in JSON")
    try:
        value = json.loads(str(body, "utf-8"))
        if data.find(b"\\u", 0, len(body)) >= 0:  # may be half of a surrogate pair, which could not be written again
            dump_json(value)
        return value
    except (ValueError, RecursionError, MemoryError) as error:
        raise CorruptError(f"record is not JSON: {error}") from None


def _values_in(data: bytes, end: int) -> int:
    """The number of values in JSON before `end`, or more. Counted before they take memory."""
    return sum(data.count(mark, 0, end) for mark in (b",", b"[", b"{"))


def write_record(directory: Path, name: str, record: ShardRecord) -> None:
    """Publishes the shard `name`. Its data must be complete."""
    durable_write(directory / f"{name}.json", seal_json(record.to_json()), sync=False)


def read_record(directory: Path, name: str) -> ShardRecord:
    """Raises CorruptError for a damaged record, FileNotFoundError if there is none."""
    return ShardRecord.from_json(unseal_json(read_regular(directory / f"{name}.json", MAX_RECORD_BYTES)))


def drop_record(directory: Path, name: str) -> None:
    """Unpublishes a shard, so that its data may be overwritten."""
    (directory / f"{name}.json").unlink(missing_ok=True)
