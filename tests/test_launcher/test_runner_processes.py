"""What belongs to an attempt is found and ended, and nothing else."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import uuid
from pathlib import Path
from types import SimpleNamespace

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


@pytest.mark.parametrize(("state", "limit_s"), [("D", 1.0), ("R", 2.0), ("S", 2.0)])
def test_a_killed_process_that_waits_for_a_processor_has_more_time_than_one_that_the_kernel_blocks(
    monkeypatch: pytest.MonkeyPatch, state: str, limit_s: float
) -> None:
    now_s = [0.0]

    async def passes(seconds: float) -> None:
        now_s[0] += seconds

    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr(processes, "asyncio", SimpleNamespace(sleep=passes))
    monkeypatch.setattr(processes, "state_of", lambda pid: state)
    assert asyncio.run(end_all(lambda: [2**22 + 1], 1.0)) == [2**22 + 1]
    assert now_s[0] == pytest.approx(limit_s, abs=0.02)


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
