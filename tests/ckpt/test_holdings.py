"""What a memory directory is taken to hold while workers write beside it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from agent_kit import NAMESPACE, RUN_ID, content, layout
from waiting import until

from ckpt.agent import holdings
from ckpt.agent.holdings import Holdings
from ckpt.record.blocks import checksums
from ckpt.record.shard import SaveId, ShardRecord


def put(held: Holdings, name: str, step: int) -> ShardRecord:
    """A shard of rank 0, published."""
    data = content(0, step)
    held.room_for(name, len(data))(0, len(data))[:] = data
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


def test_room_is_all_there_whatever_the_file_was_before(tmp_path: Path) -> None:
    """A file as long as is needed may have holes: what writes into them where memory is full gets a SIGBUS."""
    nbytes, path = 1 << 20, tmp_path / "copy-1-0-0.data"
    for before in (0, nbytes // 2, nbytes, 2 * nbytes):
        path.unlink(missing_ok=True)
        path.touch()
        os.truncate(path, before)
        Holdings(tmp_path, RUN_ID, NAMESPACE).room_for(path.stem, nbytes)
        assert path.stat().st_blocks * 512 >= nbytes


def test_memory_that_is_there_is_not_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel would look at each page, at every save."""
    asked, allocate = [], os.posix_fallocate
    monkeypatch.setattr(os, "posix_fallocate", lambda fd, start, n: asked.append(n) or allocate(fd, start, n))
    held = Holdings(tmp_path, RUN_ID, NAMESPACE)
    for nbytes in (8192, 8192, 4096, 12288):
        held.room_for("copy-1-0-0", nbytes)
    assert asked == [8192, 12288]


def test_new_memory_is_mapped_before_it_is_written_to(tmp_path: Path) -> None:
    nbytes = 8 << 20
    room = Holdings(tmp_path, RUN_ID, NAMESPACE).room_for("copy-1-0-0", nbytes)

    def mapped_kb() -> int:
        lines = iter(Path("/proc/self/smaps").read_text().splitlines())
        next(line for line in lines if line.endswith(str(tmp_path / "copy-1-0-0.data")))
        return int(next(line for line in lines if line.startswith("Rss:")).split()[1])

    until(lambda: mapped_kb() == nbytes >> 10, "its pages are mapped")
    assert not any(room(0, nbytes))
