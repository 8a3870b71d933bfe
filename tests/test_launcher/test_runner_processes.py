"""What belongs to an attempt is found and ended, and nothing else."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from holdfast.base import processes
from holdfast.base.processes import (
    descendants,
    end_all,
    environment_of,
    pids_with_environment,
    session_pids,
    state_of,
)

SLEEP = [sys.executable, "-c", "print(flush=True); import time; time.sleep(600)"]


def started(argv: list[str], **options: object) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, **options)  # type: ignore[call-overload]
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_processes_are_found_by_their_environment_and_ended() -> None:
    mark = uuid.uuid4().hex
    ours = [started(SLEEP, env={**os.environ, "HOLDFAST_RUN_ID": mark}) for _ in range(2)]
    other = started(SLEEP, env={**os.environ, "HOLDFAST_RUN_ID": mark + "0"})
    find = lambda: pids_with_environment({"HOLDFAST_RUN_ID": mark})  # noqa: E731
    assert sorted(find()) == sorted(process.pid for process in ours)
    assert environment_of(ours[0].pid)["HOLDFAST_RUN_ID"] == mark
    assert asyncio.run(end_all(find, 5.0)) == []
    assert [process.wait(5) for process in ours] == [-9, -9]
    assert other.poll() is None
    other.kill()
    other.wait()


def test_whole_session_is_found_children_included() -> None:
    code = f"import subprocess, sys; p = subprocess.Popen({SLEEP!r}); print(p.pid, flush=True); p.wait()"
    leader = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    assert leader.stdout is not None
    leader.stdout.readline()
    assert len(session_pids(leader.pid)) == 2
    assert asyncio.run(end_all(lambda: session_pids(leader.pid), 5.0)) == []
    assert leader.wait(5) == -9


def test_descendants_are_found_though_they_leave_their_session_and_lose_their_parents() -> None:
    """A script's daemons, say. Others' processes cost nothing."""
    daemon = f"import os, subprocess; os.setsid(); subprocess.Popen({SLEEP!r})"
    code = (
        "import subprocess, sys, time; from holdfast.base.processes import adopt_orphans; adopt_orphans();"
        f"p = subprocess.run([sys.executable, '-c', {daemon!r}]); print('up', flush=True); time.sleep(600)"
    )
    top = started([sys.executable, "-c", code])
    (orphan,) = descendants(top.pid)
    assert os.getsid(orphan) not in (os.getsid(top.pid), os.getsid(0))
    assert asyncio.run(end_all(lambda: descendants(top.pid), 5.0)) == []
    assert state_of(orphan) in ("Z", "") and top.poll() is None
    top.kill()
    top.wait()


def test_what_cannot_be_ended_is_named_after_the_deadline() -> None:
    assert asyncio.run(end_all(lambda: [2**22 + 1], 0.05)) == [2**22 + 1]


def test_a_process_that_is_still_ending_is_waited_for_as_long_as_its_owner_says() -> None:
    """As one whose memory of GPUs the driver frees, or that waits for a processor of an overloaded node."""
    asked: list[list[int]] = []
    gone = iter([[1]] * 20)

    def longer(pids: list[int]) -> float:
        asked.append(pids)
        return 60.0

    find = lambda: next(gone, []) and [2**22 + 1]  # noqa: E731
    assert asyncio.run(end_all(find, 0.0, longer)) == []
    assert asked == [[2**22 + 1]], "once"


def test_a_process_that_the_kernel_blocks_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "is_blocked", lambda pid: True)
    assert asyncio.run(end_all(lambda: [2**22 + 1], 0.0, lambda pids: 60.0)) == [2**22 + 1]


@pytest.mark.parametrize(
    ("stat", "is_so"),
    [
        ("7 (a) b) D 1 7 7 0 -1 4194560 1 0", True),  # in a read of a file system that hangs
        ("7 (a) b) D 1 7 7 0 -1 4194564 1 0", False),  # PF_EXITING
        ("7 (a) b) R 1 7 7 0 -1 4194560 1 0", False),
        ("7 (a) b) Z 1 7 7 0 -1 4194564 1 0", False),
    ],
)
def test_only_a_process_that_has_not_begun_to_end_is_blocked(
    monkeypatch: pytest.MonkeyPatch, stat: str, is_so: bool
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda self: stat)
    assert processes.is_blocked(7) is is_so


def test_no_process_that_has_ended_is_blocked() -> None:
    assert not processes.is_blocked(2**22 + 1)


def test_child_dies_with_its_parent(tmp_path: Path) -> None:
    child = (
        "import os, sys; from holdfast.base.processes import die_with_parent; die_with_parent(int(sys.argv[1]));"
        "print(os.getpid(), flush=True); import time; time.sleep(600)"
    )
    code = (
        "import os, subprocess, sys, time;"
        f"subprocess.Popen([sys.executable, '-c', {child!r}, str(os.getpid())]); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child_pid = int(parent.stdout.readline())
    child_fd = os.pidfd_open(child_pid)
    parent.kill()
    parent.wait()
    import select

    assert select.select([child_fd], [], [], 5.0)[0], "the child outlived its parent"
    os.close(child_fd)
