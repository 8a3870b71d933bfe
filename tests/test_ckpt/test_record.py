"""What is stored is trusted only when it verifies: files, records, manifests, boxes."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt.errors import CorruptError
from ckpt.format.atomic_files import map_regular, read_regular
from ckpt.format.boxes import Box, cover, intersect, subtract
from ckpt.format.checksums import BLOCK_BYTES, Arriving, blocks_of_range, checksum, checksums, damaged_blocks
from ckpt.format.layout import ALIGN_BYTES, Chunk, Layout, align
from ckpt.format.manifest import NAME, Manifest, ShardPlace, merge, new_manifest, pack, parse_manifest
from ckpt.format.rank_grid import Spread
from ckpt.format.shard_record import (
    MAX_RECORD_BYTES,
    SaveId,
    ShardRecord,
    read_record,
    seal_json,
    unseal_json,
    write_record,
)
from holdfast.base.files import durable_write

SAVE = SaveId(step=7, attempt=2, run_id="run")


def record(rank: int = 0, world_size: int = 1, data: bytes = b"x" * 100, save: SaveId = SAVE) -> ShardRecord:
    chunk = Chunk(
        key="w", dtype="uint8", shape=(len(data),), offsets=(0,), sizes=(len(data),), start=0, nbytes=len(data)
    )
    layout = Layout(chunks=(chunk,), tree={"w": {"#tensor": "w"}}, nbytes=len(data))
    return ShardRecord(
        save=save, namespace="ns", rank=rank, world_size=world_size, layout=layout, blocks=checksums(memoryview(data))
    )


def place(rank: int, world_size: int, **changes: object) -> ShardPlace:
    return ShardPlace(
        **{
            "rank": rank,
            "file": "node-00000.data",
            "offset": rank * 4096,
            "record": record(rank, world_size),
            **changes,
        }
    )


# blocks


def test_a_changed_byte_is_found_in_its_block() -> None:
    data = bytearray(2 * BLOCK_BYTES + 5)
    sums = checksums(memoryview(data))
    data[BLOCK_BYTES + 1] ^= 1
    assert damaged_blocks(memoryview(data), sums) == [1]
    assert damaged_blocks(memoryview(data), sums, blocks=[0, 2]) == []


@given(st.randoms(), st.integers(1, 3 * BLOCK_BYTES), st.integers(1, 12))
def test_a_block_is_summed_when_its_last_bytes_have_come_in_whatever_order(random, nbytes, parts):
    data = memoryview(bytearray(nbytes))
    cuts = sorted({0, nbytes, *(random.randrange(nbytes) for _ in range(parts))})
    spans = list(itertools.pairwise(cuts))
    random.shuffle(spans)
    coming = Arriving(data)
    for start, stop in spans:
        assert "" in coming.sums
        data[start:stop] = bytes([start % 251]) * (stop - start)
        coming.landed(start, stop)
    assert tuple(coming.sums) == checksums(data)


@given(st.integers(0, 5 * BLOCK_BYTES), st.integers(0, 5 * BLOCK_BYTES))
def test_the_blocks_of_a_range_are_those_it_touches(start: int, nbytes: int) -> None:
    expected = {i for i in range(12) if start < (i + 1) * BLOCK_BYTES and i * BLOCK_BYTES < start + nbytes and nbytes}
    assert set(blocks_of_range(start, nbytes)) == expected


# boxes


@st.composite
def boxes(draw: st.DrawFn, shape: tuple[int, ...]) -> Box:
    offsets = tuple(draw(st.integers(0, size)) for size in shape)
    return Box(offsets, tuple(draw(st.integers(0, size - o)) for o, size in zip(offsets, shape, strict=True)))


def cells(box: Box) -> set[tuple[int, ...]]:
    found: set[tuple[int, ...]] = {()}
    for offset, size in zip(box.offsets, box.sizes, strict=True):
        found = {(*cell, i) for cell in found for i in range(offset, offset + size)}
    return found


shapes = st.lists(st.integers(1, 4), min_size=0, max_size=3).map(tuple)


@given(st.data(), shapes)
def test_intersect_and_subtract_partition_a_box(data: st.DataObject, shape: tuple[int, ...]) -> None:
    a, b = data.draw(boxes(shape)), data.draw(boxes(shape))
    shared = intersect(a, b)
    assert (cells(shared) if shared else set()) == cells(a) & cells(b)
    if shared:
        rest = [cells(box) for box in subtract(a, shared)]
        assert sum(map(len, rest)) == len(set().union(*rest)) == len(cells(a)) - len(cells(shared))


@given(st.data(), shapes)
def test_cover_reads_each_element_once_or_says_what_is_missing(data: st.DataObject, shape: tuple[int, ...]) -> None:
    wanted = data.draw(boxes(shape))
    offers = [(box, i) for i, box in enumerate(data.draw(st.lists(boxes(shape), max_size=5)))]
    parts, missing = cover(wanted, offers)
    read = [cell for part, _, _ in parts for cell in cells(part)]
    lost = [cell for box in missing for cell in cells(box)]
    assert sorted(read + lost) == sorted(cells(wanted))
    assert set(lost) == cells(wanted) - set().union(*(cells(box) for box, _ in offers))
    assert all(cells(part) <= cells(box) and offers[i][0] == box for part, box, i in parts)


@given(st.data(), shapes)
def test_the_span_of_a_part_holds_all_its_elements(data: st.DataObject, shape: tuple[int, ...]) -> None:
    outer = Box((0,) * len(shape), shape)
    part = data.draw(boxes(shape))
    first, end = part.span(outer)
    flat = [sum(i * math.prod(shape[d + 1 :]) for d, i in enumerate(cell)) for cell in cells(part)]
    assert (min(flat), max(flat) + 1) == (first, end) if flat else (first, end) == (0, 0)


# layout


@given(st.integers(0, 10**9))
def test_alignment(nbytes: int) -> None:
    assert align(nbytes) % ALIGN_BYTES == 0
    assert 0 <= align(nbytes) - nbytes < ALIGN_BYTES


@pytest.mark.parametrize(
    "row",
    [
        ["w", "uint8", [4], [1], [4], 0, 4],  # outside its tensor
        ["w", "uint8", [4], [0], [4], -1, 4],
        ["w", "uint8", [4], [0], [4], 0, 5],  # bytes do not divide
        ["w", "uint8", [4], [0], [4, 1], 0, 4],
        ["w", "uint8", [4.0], [0], [4], 0, 4],
        ["w", "uint8", "4", "0", "4", 0, 4],
        ["w", "uint8"],
        None,
        {"key": "w"},
        ["w", "uint8", [9] * 65, [0] * 65, [9] * 65, 0, 0],  # the product of a million sizes takes hours
        ["w", "uint8", [1 << 62], [0], [1], 0, 1],
        ["w", "uint8", [True], [0], [1], 0, 1],
    ],
)
def test_a_hostile_chunk_is_refused(row: object) -> None:
    with pytest.raises(CorruptError):
        Chunk.from_list(row)  # type: ignore[arg-type]


@pytest.mark.parametrize("nbytes", [3, -1, 4.0, None, "4"])
def test_a_chunk_outside_the_shard_is_refused(nbytes: object) -> None:
    with pytest.raises(CorruptError):
        Layout.from_json({"nbytes": nbytes, "tree": None, "chunks": [["w", "uint8", [4], [0], [4], 0, 4]]})


# records


def test_a_record_round_trips(tmp_path: Path) -> None:
    write_record(tmp_path, "own-0-0", record())
    assert read_record(tmp_path, "own-0-0") == record()


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_no_record(data: bytes) -> None:
    with pytest.raises(CorruptError):
        unseal_json(data)


def test_every_truncation_and_every_flipped_byte_of_a_record_is_noticed() -> None:
    data = seal_json({"step": 1, "blocks": ["aa", "bb"]})
    for i in range(len(data)):
        flipped = data[:i] + bytes([data[i] ^ 0x20]) + data[i + 1 :]
        for bad in (data[:i], flipped):
            if bad != data[:-1] and not (i == len(data) - 1 and bad == flipped):  # the last newline carries nothing
                with pytest.raises(CorruptError):
                    unseal_json(bad)


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"block_bytes": 1},
        {"step": -1},
        {"step": "7"},
        {"step": 1e400},
        {"rank": 1},
        {"rank": 1e400},
        {"blocks": []},
        {"blocks": None},
        {"layout": None},
        {"layout": {"nbytes": 1 << 80, "chunks": [], "tree": None}},
        {"run_id": 5},
        {"world_size": 0},
    ],
)
def test_a_sealed_record_with_a_wrong_field_is_refused(change: dict[str, object]) -> None:
    value = json.loads(json.dumps({**record().to_json(), **change}))
    with pytest.raises(CorruptError):
        ShardRecord.from_json(value)


@pytest.mark.parametrize("body", [b"[" * 200_000 + b"]" * 200_000, rb'{"key": "\ud800"}'], ids=["deep", "half"])
def test_json_that_cannot_be_read_or_written_again_is_refused(body: bytes) -> None:
    with pytest.raises(CorruptError):
        unseal_json(body + b"\n" + checksum(body).encode() + b"\n")


# manifests


def write_manifest(directory: Path, manifest: Manifest) -> None:
    durable_write(directory / NAME, seal_json(manifest.to_json()))


def read_manifest(directory: Path) -> Manifest:
    return parse_manifest(read_regular(directory / NAME, MAX_RECORD_BYTES))


def test_what_ranks_have_in_common_is_stored_once_and_every_record_comes_back(tmp_path: Path) -> None:
    """FSDP's rows, an uneven last rank, a scalar, an empty box, offsets that are no multiple of sizes."""
    world_size = 5

    def sharded(rank: int) -> ShardPlace:
        rows = 8 if rank < world_size - 1 else 3
        boxes = [((35, 4), (8 * rank, 0), (rows, 4)), ((), (), ()), ((9,), (9,), (0,)), ((10,), (3,), (7,))]
        chunks, start = [], 0
        for i, (shape, offsets, sizes) in enumerate(boxes * 20):
            nbytes = 4 * math.prod(sizes)
            chunks.append(Chunk(key=f"layer{i}", dtype="float32", shape=shape, offsets=offsets, sizes=sizes,
                                start=start, nbytes=nbytes))  # fmt: skip
            start += align(nbytes)
        layout = Layout(chunks=tuple(chunks), tree={"rng": (1, True, 1.0)[rank // 2]}, nbytes=start)
        record = ShardRecord(save=SAVE, namespace="gpt", rank=rank, world_size=world_size, layout=layout,
                             blocks=checksums(memoryview(bytes([rank]) * start)), flush=rank == 2)  # fmt: skip
        return ShardPlace(rank=rank, file=f"node-{rank // 2:05d}.data", offset=4096 * (rank % 2), record=record)

    places = [sharded(rank) for rank in range(world_size)]
    manifest = new_manifest(SAVE, world_size, 1.5, places)
    write_manifest(tmp_path, manifest)
    found = read_manifest(tmp_path)
    assert list(found.shards) == places
    parts_of_nodes = [pack(SAVE, places[3:]), pack(SAVE, places[:3])]
    merged = new_manifest(SAVE, world_size, 1.5, merge(SAVE, "gpt", world_size, parts_of_nodes))
    assert list(merged.shards) == places and merged.nbytes == manifest.nbytes
    for shards in (found.shards, merged.shards):
        assert [str(place.record.layout.tree["rng"]) for place in shards] == ["1", "1", "True", "True", "1.0"]
    with pytest.raises(CorruptError):
        new_manifest(SAVE, world_size, 1.5, merge(SAVE, "gpt", world_size, parts_of_nodes[:1]))
    with pytest.raises(CorruptError):
        pack(SaveId(step=8, attempt=2, run_id="run"), places)
    assert found.nbytes == manifest.nbytes == sum(place.record.nbytes for place in places)
    parts = manifest.to_json()["parts"]
    assert sum(isinstance(part, dict) for part in parts) == 3 and sum("layer0" in str(part) for part in parts) == 2


@pytest.mark.parametrize(
    ("field", "value"), [(0, 7), (1, 9), (3, 5 << 20), (5, 9), (7, 1), (8, "00"), (8, 5), (4, "x"), (2, True)]
)
def test_a_manifest_with_a_malformed_row_is_refused(tmp_path: Path, field: int, value: object) -> None:
    content = new_manifest(SAVE, 1, 0.0, [place(0, 1)]).to_json()
    content["rows"][0][field] = value
    (tmp_path / "manifest.json").write_bytes(seal_json(content))
    with pytest.raises(CorruptError):
        list(read_manifest(tmp_path).shards)


@pytest.mark.parametrize("runs", [[[2, [0], 1]], [], [[1, [0, 0], 1]], [[1, [-1], 1]], [[1, ["x"], 0]], [["x"]], 5])
def test_a_record_whose_parts_do_not_fit_together_is_refused(tmp_path: Path, runs: object) -> None:
    content = new_manifest(SAVE, 1, 0.0, [place(0, 1)]).to_json()
    content["parts"][content["rows"][0][7]] = runs
    (tmp_path / "manifest.json").write_bytes(seal_json(content))
    with pytest.raises(CorruptError):
        list(read_manifest(tmp_path).shards)


def test_a_manifest_round_trips_in_order_of_rank(tmp_path: Path) -> None:
    manifest = new_manifest(SAVE, 3, 1.5, [place(2, 3), place(0, 3), place(1, 3)])
    write_manifest(tmp_path, manifest)
    assert list(read_manifest(tmp_path).shards) == list(manifest.shards)
    assert [shard.rank for shard in manifest.shards] == [0, 1, 2]
    assert manifest.nbytes == 300


def test_a_manifest_keeps_over_which_ranks_tensors_are_spread(tmp_path: Path) -> None:
    spreads = (Spread(shape=(2,), ranks=range(2), splits=(None,)), Spread(shape=(2,), ranks=(1, 0), splits=(0,)))

    def shared(rank: int) -> ShardPlace:
        own = Chunk(key="own", dtype="uint8", shape=(7,), offsets=(0,), sizes=(7,), start=0, nbytes=7)
        replica = Chunk(key="w", dtype="uint8", shape=(9,), offsets=(5 * rank,), sizes=(5 - rank,), start=64,
                        nbytes=5 - rank, spread=0, owners=(0, 1))  # fmt: skip
        nothing = Chunk(key="v", dtype="uint8", shape=(9,), offsets=(0,), sizes=(0,), start=128, nbytes=0, spread=1)
        layout = Layout(chunks=(own, replica, nothing), tree={}, nbytes=128, spreads=spreads)
        record = ShardRecord(save=SAVE, namespace="gpt", rank=rank, world_size=2, layout=layout,
                             blocks=checksums(memoryview(bytes(128))))  # fmt: skip
        return ShardPlace(rank=rank, file="node-00000.data", offset=4096 * rank, record=record)

    places = [shared(0), shared(1)]
    write_manifest(tmp_path, new_manifest(SAVE, 2, 1.5, merge(SAVE, "gpt", 2, [pack(SAVE, places)])))
    assert list(read_manifest(tmp_path).shards) == places


@pytest.mark.parametrize("ranks", [[0], [0, 0], [0, 1, 1], [1, 2], []])
def test_a_manifest_without_one_shard_of_each_rank_is_refused(ranks: list[int]) -> None:
    with pytest.raises(CorruptError):
        new_manifest(SAVE, 2, 0.0, [place(rank, 3 if rank > 1 else 2) for rank in ranks])


def test_a_manifest_with_a_shard_of_another_save_is_refused() -> None:
    other = place(1, 2, record=record(1, 2, save=SaveId(step=7, attempt=1, run_id="run")))
    with pytest.raises(CorruptError, match="rank 1 is of another save"):
        new_manifest(SAVE, 2, 0.0, [place(0, 2), other])


@pytest.mark.parametrize(
    "file",
    ["../node-00000.data", "/etc/passwd", "node-00000.data/../x", "node-1.data", "", "node-00000.data\n", 5, None],
)
def test_a_manifest_that_names_another_file_is_refused(tmp_path: Path, file: object) -> None:
    value = new_manifest(SAVE, 1, 0.0, [place(0, 1)]).to_json()
    value["files"][0] = file
    (tmp_path / "manifest.json").write_bytes(seal_json(value))
    with pytest.raises(CorruptError, match="file"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("offset", [-1, 1 << 62, 1.0, "0", None])
def test_a_manifest_with_a_bad_offset_is_refused(tmp_path: Path, offset: object) -> None:
    value = new_manifest(SAVE, 1, 0.0, [place(0, 1)]).to_json()
    value["rows"][0][2] = offset
    (tmp_path / "manifest.json").write_bytes(seal_json(value))
    with pytest.raises(CorruptError):
        read_manifest(tmp_path)


@pytest.mark.parametrize("kind", ["symlink", "pipe", "directory", "oversize", "empty"])
def test_a_manifest_that_is_no_file_of_a_sane_size_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "manifest.json"
    if kind == "symlink":
        (tmp_path / "real.json").write_bytes(seal_json(new_manifest(SAVE, 1, 0.0, [place(0, 1)]).to_json()))
        path.symlink_to("real.json")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.touch()
        os.truncate(path, (1 << 30) + 1 if kind == "oversize" else 0)
    with pytest.raises(CorruptError):
        read_manifest(tmp_path)


@pytest.mark.parametrize(("start", "nbytes"), [(0, 0), (0, 9000), (4096, 4000), (4097, 1), (9000, 0)])
def test_any_part_of_a_file_is_mapped(tmp_path: Path, start: int, nbytes: int) -> None:
    data = os.urandom(9000)
    (tmp_path / "a.data").write_bytes(data)
    mapped = map_regular(tmp_path / "a.data", start, nbytes)
    assert mapped == data[start : start + nbytes]
    if nbytes:
        mapped[0] ^= 1  # for libraries that want writable memory: the file stays as it is
    assert (tmp_path / "a.data").read_bytes() == data


def test_what_is_too_short_or_no_file_is_not_mapped(tmp_path: Path) -> None:
    (tmp_path / "a.data").write_bytes(bytes(10))
    (tmp_path / "link").symlink_to("a.data")
    with pytest.raises(CorruptError, match="got 10 bytes, expected at least 11"):
        map_regular(tmp_path / "a.data", 4, 7)
    with pytest.raises(CorruptError, match="symbolic link"):
        map_regular(tmp_path / "link", 0, 1)
    with pytest.raises(FileNotFoundError):
        map_regular(tmp_path / "gone", 0, 0)


def test_a_record_that_0_2_0_has_left_in_memory_is_read() -> None:
    """There the flush to all tiers is named `drain`."""
    layout = Layout(chunks=(), tree={}, nbytes=0)
    record = ShardRecord(
        save=SaveId(step=1, attempt=0, run_id="r"), namespace="n", rank=0, world_size=1, layout=layout, blocks=(),
        flush=True,
    )  # fmt: skip
    value = record.to_json()
    assert value["flush"] is True and ShardRecord.from_json(value) == record
    old = {"drain" if name == "flush" else name: each for name, each in value.items()}
    assert ShardRecord.from_json(old) == record


# durable writes

_KILLED_WRITER = """
import os, signal, sys
from pathlib import Path
import holdfast.base.files as files
stage, path = sys.argv[1], Path(sys.argv[2])
real = {name: getattr(os, name) for name in ("open", "write", "fsync", "close", "replace")}
def dying(name):
    def call(*args, **kwargs):
        if name == stage:
            os.kill(os.getpid(), signal.SIGKILL)
        return real[name](*args, **kwargs)
    return call
for name in real:
    setattr(os, name, dying(name))
files.durable_write(path, b"new" * 1000)
"""


@pytest.mark.parametrize("stage", ["open", "write", "fsync", "close", "replace"])
def test_a_write_killed_at_any_stage_leaves_the_old_content(tmp_path: Path, stage: str) -> None:
    path = tmp_path / "file"
    durable_write(path, b"old")
    done = subprocess.run([sys.executable, "-c", _KILLED_WRITER, stage, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    durable_write(path, b"next")
    assert path.read_bytes() == b"next"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_failed_write_leaves_the_old_content_and_no_rest(tmp_path: Path) -> None:
    path = tmp_path / "file"
    durable_write(path, b"old")
    with pytest.raises(OSError):
        durable_write(path / "below", b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]
