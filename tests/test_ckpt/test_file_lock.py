"""Locks on files: one holder at a time, and an error that says what is wrong where a lock cannot be had."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from pathlib import Path

import pytest
from agent_kit import open_below

from ckpt.agent.process.lifetime import MemoryDirectory
from ckpt.format.file_lock import locked


def test_a_lock_has_one_holder_until_its_descriptor_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = locked(path)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(BlockingIOError, match=str(path)):
        locked(path, timeout_s=0.01)
    os.close(first)
    os.close(locked(path))


def test_a_lock_that_is_released_in_time_is_had(tmp_path: Path) -> None:
    first, got = locked(tmp_path / "lock"), list[int]()
    waiting = threading.Thread(target=lambda: got.append(locked(tmp_path / "lock", timeout_s=60)))
    waiting.start()
    os.close(first)
    waiting.join()
    os.close(*got)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic links"):
        locked(tmp_path / "lock")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EIO])
def test_a_file_system_without_locks_is_named_at_once_and_is_no_other_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    held = list[str]()

    def refuse(descriptor: int, operation: int) -> None:
        held.extend(open_below(tmp_path))
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OSError, match=f"{os.strerror(number)}.*agent.lock") as raised:
        MemoryDirectory(tmp_path / "ours", timeout_s=3600)
    assert raised.value.errno == number
    assert held == [str(tmp_path / "ours" / "agent.lock")]
    assert not open_below(tmp_path)
