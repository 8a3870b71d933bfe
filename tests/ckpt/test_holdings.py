"""What a memory directory is taken to hold while workers write beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from agent_kit import NAMESPACE, RUN_ID, content, layout

from ckpt.agent import holdings
from ckpt.agent.holdings import Holdings
from ckpt.record.blocks import checksums
from ckpt.record.shard import SaveId, ShardRecord


def put(held: Holdings, name: str, step: int) -> ShardRecord:
    """A shard of rank 0, published."""
    data = content(0, step)
    held.room_for(name, len(data))[:] = data
    save = SaveId(step=step, attempt=0, run_id=RUN_ID)
    record = ShardRecord(
        save=save, namespace=NAMESPACE, rank=0, world_size=1, layout=layout(len(data)),
        blocks=checksums(memoryview(data)),
    )  # fmt: skip
    held.publish(name, record)
    return record


def opened(ram_dir: Path) -> Holdings:
    """As an agent finds them that has just started: nothing is verified."""
    held = Holdings(ram_dir, RUN_ID, NAMESPACE)
    held.scan()
    return held


@pytest.mark.parametrize("torn", [False, True])
def test_a_slot_that_is_saved_into_while_it_is_verified_neither_counts_nor_is_the_new_shard_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torn: bool
) -> None:
    """Be it that the bytes read were the old ones, or old and new mixed."""
    old = put(Holdings(tmp_path, RUN_ID, NAMESPACE), "own-0-0", 10)
    held = opened(tmp_path)

    def overwritten(data: memoryview, blocks: Sequence[str]) -> list[int]:
        put(held, "own-0-0", 20)
        return [0] if torn else []

    monkeypatch.setattr(holdings, "bad_blocks", overwritten)
    assert not asyncio.run(held.verify("own-0-0"))
    assert held.record("own-0-0").save.step == 20
    assert held.find(old.save, 0) == []


def test_of_several_shards_the_one_that_was_verified_comes_first(tmp_path: Path) -> None:
    """It is what others are served; else this node's own before copies."""
    before = Holdings(tmp_path, RUN_ID, NAMESPACE)
    for name in ("copy-1-0-0", "own-0-0"):
        save = put(before, name, 10).save
    held = opened(tmp_path)
    assert held.find(save, 0) == ["own-0-0", "copy-1-0-0"]
    assert asyncio.run(held.verify("copy-1-0-0"))
    assert held.find(save, 0) == ["copy-1-0-0", "own-0-0"]


def test_a_slot_whose_file_was_replaced_is_mapped_anew(tmp_path: Path) -> None:
    held = Holdings(tmp_path, RUN_ID, NAMESPACE)
    record = put(held, "own-0-0", 10)
    (tmp_path / "new").write_bytes(content(0, 20))
    (tmp_path / "new").replace(tmp_path / "own-0-0.data")
    assert bytes(held.bytes_of("own-0-0", record.nbytes)) == content(0, 20)


def test_what_a_killed_process_left_half_made_goes(tmp_path: Path) -> None:
    put(Holdings(tmp_path, RUN_ID, NAMESPACE), "own-0-0", 10)
    kept = {path.name for path in tmp_path.iterdir()}
    for name in ("fetch-0-1.data", ".own-0-0.json.1234.tmp"):
        (tmp_path / name).touch()
    opened(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == kept
