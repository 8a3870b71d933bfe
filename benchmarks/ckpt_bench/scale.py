"""The time and size of a manifest of thousands of ranks, with simulated shards.

The packs of all nodes are simulated. One process merges them, writes the manifest and reads it back, as agents do.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from ckpt.format.atomic_files import read_regular
from ckpt.format.checksums import BLOCK_BYTES, block_count
from ckpt.format.layout import Chunk, Layout
from ckpt.format.manifest import NAME, Manifest, ShardPlace, merge, new_manifest, pack, parse_manifest
from ckpt.format.shard_record import MAX_RECORD_BYTES, SaveId, ShardRecord, seal_json
from ckpt_bench.figures import Figure, timed_s
from holdfast.base.files import durable_write

WORLDS = (1024, 4096, 16384)
_RANKS_PER_NODE = 8
_TENSORS = 500
_ROWS, _COLUMNS = 64, 2048  # of each rank's part of a tensor: 512 KiB
_SAVE = SaveId(step=1, attempt=0, run_id="bench")


def scale(directory: Path, worlds: tuple[int, ...] = WORLDS) -> list[Figure]:
    """The figures of each world size; the peer is the previous world size.

    The layout is that of FSDP: all ranks have the same tensors, and each rank has its own rows of them.
    """
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=directory) as folder:
        before: dict[str, dict[str, float]] = {}
        for world in worlds:
            values = _one(Path(folder), world)
            for what, (value, unit) in values.items():
                name = f"manifest of {world:,} ranks x {_TENSORS} tensors: {what}"
                figures.append(Figure(name=name, value=value, unit=unit, peers=before.get(what, {})))
                before[what] = {f"{world:,} ranks": value}
    return figures


def _one(folder: Path, world: int) -> dict[str, tuple[float, str]]:
    packs: list[Any] = []

    def plan() -> None:
        packs.append(pack(_SAVE, [_place(rank, world) for rank in range(_RANKS_PER_NODE)]))

    planned_s = timed_s(plan)
    first = packs[0]
    packs += [_of_node(first, node) for node in range(1, world // _RANKS_PER_NODE)]
    made: list[Manifest] = []
    built_s = timed_s(lambda: made.append(new_manifest(_SAVE, world, 0.0, merge(_SAVE, "bench", world, packs))))
    written_s = timed_s(lambda: durable_write(folder / NAME, seal_json(made[0].to_json())))
    read_s = timed_s(lambda: made.append(parse_manifest(read_regular(folder / NAME, MAX_RECORD_BYTES))))
    if made[1].shards[world - 1] != _place(world - 1, world):
        raise RuntimeError(f"benchmark: the record of rank {world - 1} differs after the read")
    nbytes = float((folder / "manifest.json").stat().st_size)
    return {
        "one node packs": (planned_s, "s"), "merge": (built_s, "s"), "write": (written_s, "s"), "read": (read_s, "s"),
        "size": (nbytes / 1e6, "MB"),
    }  # fmt: skip


def _of_node(first: dict[str, Any], node: int) -> dict[str, Any]:
    """The pack of another node: that of the first, with other ranks, file and offsets."""
    table, tree = first["parts"][:2]
    ranks = range(node * _RANKS_PER_NODE, (node + 1) * _RANKS_PER_NODE)
    offsets = [[[_TENSORS, [rank, 0], 1]] for rank in ranks]
    rows = [
        [rank, 0, row[2], row[3], row[4], 0, 1, 2 + i, _sums(rank, row[3])]
        for i, (rank, row) in enumerate(zip(ranks, first["rows"], strict=True))
    ]
    return {"files": [_file(node)], "parts": [table, tree, *offsets], "rows": rows}


def _place(rank: int, world: int) -> ShardPlace:
    nbytes = _ROWS * _COLUMNS * 4
    chunks = tuple(
        Chunk(
            key=f"model/layers.{i:03d}.weight", dtype="float32", shape=(_ROWS * world, _COLUMNS),
            offsets=(_ROWS * rank, 0), sizes=(_ROWS, _COLUMNS), start=i * nbytes, nbytes=nbytes,
        )
        for i in range(_TENSORS)
    )  # fmt: skip
    tree = {"model": {chunk.key.partition("/")[2]: {"#dtensor": chunk.key} for chunk in chunks}}
    layout = Layout(chunks=chunks, tree=tree, nbytes=_TENSORS * nbytes)
    sums = _sums(rank, layout.nbytes)
    record = ShardRecord(
        save=_SAVE, namespace="bench", rank=rank, world_size=world, layout=layout,
        blocks=tuple(sums[i : i + 32] for i in range(0, len(sums), 32)),
    )  # fmt: skip
    offset = rank % _RANKS_PER_NODE * block_count(layout.nbytes) * BLOCK_BYTES
    return ShardPlace(rank=rank, file=_file(rank // _RANKS_PER_NODE), offset=offset, record=record)


def _sums(rank: int, nbytes: int) -> str:
    return "".join(f"{rank:016x}{block:016x}" for block in range(block_count(nbytes)))


def _file(node: int) -> str:
    return f"node-{node:05d}.data"
