"""Checkpoint records of a stranger, with a right checksum: every verb ends in one line, and within memory.

`make fuzz` tries three thousand mutations of real records.
"""

from __future__ import annotations

import copy
import json
import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from agent_kit import run
from hypothesis import given, settings
from hypothesis import strategies as st
from parity_kit import of, saved
from test_exchange import SAVE, sharded
from test_record import place
from test_record import record as small_record
from verb_kit import Printed, ckpt

from ckpt.errors import StateError
from ckpt.format import shard_record
from ckpt.format.manifest import new_manifest
from ckpt.format.shard_record import seal_json, unseal_json, write_record
from ckpt.tiers.catalog import directory_name
from ckpt.tiers.posix import SharedTier

pytestmark = pytest.mark.timeout(120)
_ROOM_BYTES = 3 << 29  # above what the process has: a refused record takes far less

_EXAMPLES = settings().max_examples
_MUTATIONS = 3 * _EXAMPLES if _EXAMPLES >= 1000 else _EXAMPLES // 4  # each is read by six verbs

Change = Callable[[dict[str, Any]], object]


@contextmanager
def little_memory() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + _ROOM_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def told(*arguments: object) -> Printed:
    """Runs a verb. What it prints is one line for each step or error, and no control sequence."""
    with little_memory():
        result = ckpt(*arguments)
    assert result.exit_code in (0, 1, 2, 3), result.output
    assert "\x1b" not in result.output
    if result.exit_code == 2:
        assert len(result.messages) == 1, result.output
    return result


@contextmanager
def deep_json() -> Iterator[None]:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def reseal(path: Path, change: Change) -> None:
    value = unseal_json(path.read_bytes())
    change(value)
    path.write_bytes(seal_json(value))


@pytest.fixture
def tier(tmp_path: Path) -> SharedTier:
    tier = SharedTier(tmp_path / "shared", "ns")
    sharded(tier)
    return tier


def manifest_of(tier: SharedTier) -> Path:
    return tier.folder / directory_name(SAVE) / "manifest.json"


def every_verb(tier: SharedTier) -> Iterator[Printed]:
    out = tier.path.parent / "out"
    yield told("ls", tier.path)
    yield told("verify", tier.path)
    yield told("copy", tier.folder, out / "copy")
    yield told("export", tier.folder, "--dcp", out / "dcp")
    yield told("export", tier.folder, "--safetensors", out / "file")
    yield told("gc", tier.folder, "--keep", 1)


def offsets_of(manifest: dict[str, Any], row: int = 0) -> list[Any]:
    found: list[Any] = manifest["parts"][manifest["rows"][row][7]]
    return found


def table_of(manifest: dict[str, Any], row: int = 0) -> list[Any]:
    found: list[Any] = manifest["parts"][manifest["rows"][row][5]]
    return found


def deep(depth: int) -> Any:
    tree: Any = 0
    for _ in range(depth):
        tree = [tree]
    return tree


def a_product_of_text_and_number(manifest: dict[str, Any]) -> None:
    offsets_of(manifest)[0][1][0] = "x"
    table_of(manifest)[1][0][3][0] = 3_000_000_000


def a_product_of_list_and_number(manifest: dict[str, Any]) -> None:
    offsets_of(manifest)[0][1][0] = [1]
    table_of(manifest)[1][0][3][0] = 300_000_000


def a_number_that_no_integer_has(manifest: dict[str, Any]) -> None:
    offsets_of(manifest)[0][1][0] = "x"
    table_of(manifest)[1][0][3][0] = 10**20


def many_rows_of_many_chunks(manifest: dict[str, Any]) -> None:
    """6,000 ranks with 6,000 empty chunks each, in a megabyte."""
    chunks = [[str(i), "uint8", [4], [0], 0, 0] for i in range(6000)]
    manifest["parts"] = [[[], chunks], {}, *([[6000, [rank % 5], 0]] for rank in range(6000))]
    manifest["rows"] = [[rank, 0, 0, 0, 0, 0, 1, 2 + rank, ""] for rank in range(6000)]
    manifest["world_size"] = 6000


def a_grid_of_two_billion_ranks(manifest: dict[str, Any]) -> None:
    table_of(manifest)[0] = [[[(1 << 31) - 1], [0, (1 << 31) - 1], True, [0]]]
    table_of(manifest)[1][0][2][0] += 1


def a_grid_of_ranks_that_the_run_did_not_have(manifest: dict[str, Any]) -> None:
    table_of(manifest)[0] = [[[99_999], [0, 99_999], True, [0]]]
    table_of(manifest)[1][0][2][0] += 1


def a_grid_without_a_rank(manifest: dict[str, Any]) -> None:
    table_of(manifest)[0] = [[[0], [0, 0], True, [0]]]


def a_deep_tree(manifest: dict[str, Any]) -> None:
    manifest["parts"][manifest["rows"][0][6]] = {"w": deep(5000)}


def a_dtype_that_is_none(manifest: dict[str, Any]) -> None:
    table_of(manifest)[1][0][1] = "O"


def a_dtype_that_is_no_text(manifest: dict[str, Any]) -> None:
    table_of(manifest)[1][0][1] = {"a": 1}


def a_part_that_no_rank_has(manifest: dict[str, Any]) -> None:
    for row in (0, 1):
        table_of(manifest, row)[1][0][2][0] = 9


def a_tensor_larger_than_memory(manifest: dict[str, Any]) -> None:
    for row in (0, 1):
        table_of(manifest, row)[1][0][2][0] = 1 << 50


MANIFESTS = [
    a_product_of_text_and_number, a_product_of_list_and_number, a_number_that_no_integer_has,
    a_grid_of_two_billion_ranks, a_grid_of_ranks_that_the_run_did_not_have, a_grid_without_a_rank, a_deep_tree,
    a_dtype_that_is_none, a_dtype_that_is_no_text, a_part_that_no_rank_has, a_tensor_larger_than_memory,
]  # fmt: skip


@pytest.mark.parametrize("change", MANIFESTS)
def test_a_hostile_manifest_is_one_line_of_every_verb(tier: SharedTier, change: Change) -> None:
    with deep_json():
        reseal(manifest_of(tier), change)
    assert [result for result in every_verb(tier) if result.exit_code]


def test_a_tree_that_json_reads_may_be_deeper_than_functions_call(
    tier: SharedTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in Python 3.13, whose json has a limit of its own."""
    loads = json.loads

    def deep_loads(text: Any) -> Any:
        with deep_json():
            return loads(text)

    with deep_json():
        reseal(manifest_of(tier), a_deep_tree)
    monkeypatch.setattr(json, "loads", deep_loads)
    assert [result for result in every_verb(tier) if result.exit_code]


def test_chunks_that_ranks_have_in_common_cost_time_once(tier: SharedTier) -> None:
    """36 million chunks in a megabyte: verified, copied and exported in the time of a few thousand."""
    reseal(manifest_of(tier), many_rows_of_many_chunks)
    assert not [result for result in every_verb(tier) if result.exit_code]


def test_a_manifest_of_many_values_is_refused_before_they_take_memory(tier: SharedTier) -> None:
    """A list of three bytes takes sixty in memory."""
    body = b"[" + b",".join([b"[]"] * 9_000_000) + b"]"
    manifest_of(tier).write_bytes(body + b"\n" + shard_record.checksum(body).encode() + b"\n")
    for verb in ("ls", "verify"):
        assert "values, expected at most" in told(verb, tier.path).stdout


@pytest.mark.parametrize("size", [(1 << 29) + 1, 1 << 31, 1 << 40])
def test_a_record_that_is_too_long_is_refused_unread(tier: SharedTier, tmp_path: Path, size: int) -> None:
    """A sparse file costs its writer nothing."""
    os.truncate(manifest_of(tier), size)
    assert f"got {size} bytes, expected at most" in told("verify", tier.path).stdout
    (tmp_path / "ram").mkdir()
    write_record(tmp_path / "ram", "own-0-0", small_record())
    os.truncate(tmp_path / "ram" / "own-0-0.json", size)
    assert f"got {size} bytes, expected at most" in told("ls", tmp_path / "ram").stdout


def test_a_save_that_no_reader_would_take_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_record, "_MAX_VALUES", 10)
    with pytest.raises(StateError, match="store large lists and texts as arrays or bytes"):
        seal_json({"list": list(range(20))})


def test_chunks_made_on_access_are_those_that_were_packed() -> None:
    places = [place(0, 2), place(1, 2)]
    shards = new_manifest(SAVE_OF_RECORDS, 2, 0.0, places).shards
    for shard, whole in zip(shards, places, strict=True):
        chunks = shard.record.layout.chunks
        assert chunks == whole.record.layout.chunks and list(chunks) == [chunks[i] for i in range(len(chunks))]
        assert shard.record == whole.record
        with pytest.raises(IndexError):
            chunks[len(chunks)]


SAVE_OF_RECORDS = small_record().save


# Memory


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The memory directories of four nodes with parity."""
    path = tmp_path_factory.mktemp("memory")
    run(lambda: saved(path, of("rs"), ["a", "b", "c"], steps=(10,)))
    return path


@pytest.fixture
def nodes(memory: Path, tmp_path: Path) -> list[Path]:
    shutil.copytree(memory, tmp_path / "memory", ignore=shutil.ignore_patterns("*.sock", "board"))
    return [tmp_path / "memory" / node for node in "abc"]


def every_verb_of_memory(nodes: list[Path]) -> Iterator[Printed]:
    yield told("ls", nodes[0])
    yield told("verify", nodes[0])
    yield told("rebuild", *nodes, "--into", nodes[0].parent / "into", "--commit-to", nodes[0].parent / "to")


def many_members(record: dict[str, Any]) -> None:
    record["over"]["ranks"] = [[rank] for rank in range(150_000)]
    record["over"]["lengths"] = [[1]] * 150_000


@pytest.mark.parametrize(
    ("pattern", "change"),
    [
        ("own-*.json", lambda record: record.update(world_size=1 << 61)),
        ("own-*.json", lambda record: record.update(world_size=1e300)),
        ("own-*.json", lambda record: record["layout"].update(tree=deep(900))),
        ("parity-*.json", many_members),
        ("parity-*.json", lambda record: record.update(world_size=1 << 61)),
        ("parity-*.json", lambda record: record["over"].update(ranks={"a": 1})),
        ("parity-*.json", lambda record: record["over"].update(parity=[1])),
        ("parity-*.json", lambda record: record.update(headers=[[]])),
    ],
    ids=range(8),
)
def test_a_hostile_record_in_memory_is_one_line_of_every_verb(nodes: list[Path], pattern: str, change: Change) -> None:
    for node in nodes:
        for path in node.glob(pattern):
            reseal(path, change)
    assert all(result.output for result in every_verb_of_memory(nodes))


# Mutations

ODD = st.sampled_from(
    [
        None,
        True,
        -1,
        0,
        1,
        2,
        1 << 31,
        1 << 62,
        10**20,
        1e300,
        float("nan"),
        "",
        "x",
        "\x1b[2J",
        "../x",
        "O",
        [],
        [1],
        {},
    ]
)


@st.composite
def mutation(draw: st.DrawFn) -> tuple[list[int], str, Any]:
    """The way to a place in JSON, and what happens there."""
    way = draw(st.lists(st.integers(0, 40), min_size=1, max_size=7))
    return way, draw(st.sampled_from(["set", "delete", "swap", "double"])), draw(ODD)


def mutate(value: Any, way: list[int], kind: str, odd: Any) -> None:
    """Changes one place of JSON."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key, way = keys[way[0] % len(keys)], way[1:]
        if not way or not isinstance(value[key], (dict, list)) or not value[key]:
            break
        value = value[key]
    other = keys[-1]
    if kind == "set":
        value[key] = odd
    elif kind == "swap":
        value[key], value[other] = value[other], value[key]
    elif kind == "double" and isinstance(value, list):
        value.append(copy.deepcopy(value[key]))
    else:
        del value[key]


@pytest.mark.timeout(1800)
@given(st.lists(mutation(), min_size=1, max_size=3), st.booleans())
@settings(max_examples=_MUTATIONS)
def test_no_mutation_of_a_manifest_or_record_gets_through(
    memory: Path, mutations: list[tuple[list[int], str, Any]], of_memory: bool
) -> None:
    """Every verb ends as it should, whatever is in a record whose checksum is right."""
    with tempfile.TemporaryDirectory() as name:
        tier = SharedTier(Path(name) / "shared", "ns")
        nodes = [Path(name) / "memory" / node for node in "abc"]
        if of_memory:
            shutil.copytree(memory, nodes[0].parent, ignore=shutil.ignore_patterns("*.sock", "board"))
            path = sorted(nodes[0].glob("*.json"))[mutations[0][0][0] % 2 - 1]
        else:
            sharded(tier)
            path = manifest_of(tier)

        def change(value: dict[str, Any]) -> None:
            for way, kind, odd in mutations:
                mutate(value, way, kind, odd)

        try:
            reseal(path, change)
        except (ValueError, TypeError):
            return
        for result in every_verb_of_memory(nodes) if of_memory else every_verb(tier):
            assert json.dumps(result.output)
