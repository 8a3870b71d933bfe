"""What one user leaves on a node neither keeps the next user's job waiting for long nor spoils its prolog."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hooks_kit import NEXT, OTHER, USER, as_root, as_user, environment, memory_of, run
from waiting import until

from slurm.hooks import directories, prolog
from slurm.hooks.directories import make_job_dir, make_user_dir, remove_job_dir
from slurm.hooks.hook import FIT, Hook, HookJob
from slurm.hooks.ledger import Ledger
from slurm.hooks.places import Places
from slurm.hooks.removal import remove_tree
from slurm.hooks.settings import HookSettings
from slurm.hooks.strays import kill_strays
from slurm.hooks.usage import usage

pytestmark = as_root

LEVELS = 1100  # more than Python's limit of recursion, and than descriptors that a process may have


@pytest.fixture(autouse=True)
def _no_tree_is_left(places: Places) -> Iterator[None]:
    """pytest's own removal recurses."""
    yield
    assert remove_tree(places.memory, most=1_000_000, end_s=time.monotonic() + 60)


def nest(directory: Path, levels: int) -> None:
    """Makes a tree whose path is longer than a path may be."""
    here = os.open(directory, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("file", os.O_CREAT, dir_fd=here))
    os.close(here)


def deep_tree(directory: Path) -> None:
    nest(directory, LEVELS)


def wide_tree(directory: Path) -> None:
    for number in range(1200):
        (directory / str(number)).touch()


def closed_directories(directory: Path) -> None:
    (directory / "a/b/c").mkdir(parents=True)
    (directory / "a/b/c/file").touch()
    for closed in ("a/b/c", "a/b", "a"):
        (directory / closed).chmod(0)


def links_elsewhere(directory: Path) -> None:
    (directory / "link").symlink_to("/etc")
    (directory / "sub").mkdir()
    (directory / "sub/link").symlink_to("/etc")
    os.mkfifo(directory / "sub/pipe")


def leave(places: Places, job: HookJob, shape: Callable[[Path], None]) -> Path:
    """A job of USER that left the node with a memory of this shape, which is due."""
    make_user_dir(places.memory, job)
    path = Path(make_job_dir(places.memory, job))
    child = os.fork()
    if child == 0:
        try:
            os.setresuid(USER, USER, USER)
            shape(path)
        finally:
            os._exit(0 if sys.exc_info()[0] is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    ledger = Ledger(places.ledger)
    ledger.begin(job)
    ledger.end(next(entry for entry in ledger if entry.job.job_id == job.job_id), keep_s=0.0)
    return path


def free(places: Places) -> None:
    hook = Hook(places=places, settings=HookSettings(), env={}, deadline_s=time.monotonic() + 60)
    prolog.free_memory(hook, 30.0)


@pytest.mark.parametrize("shape", [deep_tree, wide_tree, closed_directories, links_elsewhere])
def test_the_next_job_is_prepared_before_the_leftovers_are_removed_which_go_all_the_same(
    places: Places, job: HookJob, monkeypatch: pytest.MonkeyPatch, shape: Callable[[Path], None]
) -> None:
    left = leave(places, job, shape)
    monkeypatch.setattr(directories, "_MOST_REMOVED", 500)  # for each call
    prepared = Path(places.root, "prepared")
    real = prolog.free_memory

    def freed(hook: Hook, limit_s: float) -> None:
        if Path(places.tasks, str(NEXT.job_id)).exists() and memory_of(places, NEXT).is_dir():
            prepared.touch()
        real(hook, limit_s)

    monkeypatch.setattr(prolog, "free_memory", freed)
    assert run("prolog", places, environment(NEXT)) == FIT
    assert prepared.exists()
    assert f"export HOLDFAST_MEMORY_DIR={memory_of(places, NEXT)}" in Path(places.tasks, str(NEXT.job_id)).read_text()
    until(lambda: free(places) or not left.exists(), "the end of the leftovers")
    assert not left.parent.exists() and Path("/etc/passwd").exists()
    assert [entry.job.job_id for entry in Ledger(places.ledger)] == [NEXT.job_id]


def test_a_removal_that_hangs_costs_the_next_job_nothing_that_it_needs(
    places: Places, job: HookJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(places, job, deep_tree)
    monkeypatch.setattr(prolog, "free_memory", lambda *_: signal.pause())
    assert run("prolog", places, environment(NEXT), limit_s=1.0) == FIT
    assert Path(places.tasks, str(NEXT.job_id)).exists() and memory_of(places, NEXT).is_dir()
    assert NEXT.job_id in [entry.job.job_id for entry in Ledger(places.ledger)]


def test_one_users_leftovers_do_not_always_come_before_anothers(
    places: Places, job: HookJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only one job's memory is removed in a call here, and each call begins with another."""
    monkeypatch.setattr(directories, "_MOST_REMOVED", 1)
    for number in range(3):
        leave(places, HookJob(job_id=job.job_id + number, uid=USER, gid=USER, cluster="c"), links_elsewhere)
    first = []
    real = prolog.remove_job_dir
    monkeypatch.setattr(prolog, "remove_job_dir", lambda *given: first.append(given[1].job_id) or real(*given))
    for pid in range(3):
        monkeypatch.setattr(os, "getpid", lambda pid=pid: pid)
        before = len(first)
        free(places)
        first[before + 1 :] = []
    assert sorted(first) == [job.job_id, NEXT.job_id, NEXT.job_id + 1]


SIGNALLER = """
read pid; for signal in STOP KILL TERM; do kill -$signal $pid 2>/dev/null && echo $signal; done; echo done
"""


def test_the_user_can_neither_stop_nor_end_the_process_that_removes_the_memory(
    places: Places, job: HookJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = leave(places, job, links_elsewhere)
    said, says = os.pipe()
    answer, answers = os.pipe()

    def attacked(path: str, **bounds: float) -> bool:
        os.write(says, b"%d\n" % os.getpid())
        os.read(answer, 1)
        return remove_tree(path, **bounds)  # type: ignore[arg-type]

    monkeypatch.setattr(directories, "remove_tree", attacked)
    neighbour = subprocess.Popen(
        ["/bin/sh", "-c", SIGNALLER], stdin=said, stdout=subprocess.PIPE, user=USER, group=USER, extra_groups=[]
    )
    child = os.fork()
    if child == 0:
        done = remove_job_dir(places.memory, job, 30.0)
        os._exit(0 if done else 1)
    assert neighbour.communicate(timeout=30)[0] == b"done\n"
    os.write(answers, b"x")
    assert os.waitpid(child, 0)[1] == 0 and not left.exists()
    for descriptor in (said, says, answer, answers):
        os.close(descriptor)


def test_processes_with_large_environments_are_read_once_and_within_the_time(
    places: Places, job: HookJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = {f"V{number}": "x" * 100_000 for number in range(10)}
    others = [as_user(USER, "echo ready; exec sleep 60", **large, SLURM_JOB_ID=str(NEXT.job_id + 1)) for _ in range(20)]
    stray = as_user(USER, "echo ready; exec sleep 60", **large, SLURM_JOB_ID=str(job.job_id))
    read: list[int] = []
    real = sys.modules[kill_strays.__module__]._belongs
    monkeypatch.setattr("slurm.hooks.strays._belongs", lambda pid, job: read.append(pid) or real(pid, job))
    try:
        assert kill_strays(job, 30) == []
        assert stray.wait(10) == -9 and all(process.poll() is None for process in others)
        ours = sorted(process.pid for process in (*others, stray))
        assert sorted(pid for pid in read if pid in ours) == ours
        read.clear()
        kill_strays(job, -1)
        assert read == []
    finally:
        for process in (*others, stray):
            process.kill()
            process.communicate()


def test_whose_files_fill_the_memory_is_found_by_a_bounded_look(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Path(places.memory)
    nest(memory, LEVELS)
    (memory / "large").write_bytes(bytes(3 << 20))
    os.chown(memory / "large", OTHER, OTHER)
    assert f"uid {OTHER}: 3 MiB" in usage(str(memory))
    wide_tree(memory)
    monkeypatch.setattr("slurm.hooks.usage._MOST_ENTRIES", 100)
    assert usage(str(memory)).endswith("(of the first 100 files)")


@as_root
def test_the_user_can_neither_stop_nor_slow_what_a_hook_does_with_their_rights(job: HookJob, tmp_path: Path) -> None:
    """Of the child's user ids only the one for files is the user's."""
    (tmp_path / "secret").write_text("root's")
    (tmp_path / "secret").chmod(0o600)
    tmp_path.chmod(0o777)
    tries = (
        "import os,sys\npid=int(sys.argv[1])\n"
        "for change in (lambda: os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0)),\n"
        "               lambda: os.setpriority(os.PRIO_PROCESS, pid, 19),\n"
        "               lambda: os.sched_setaffinity(pid, {0}), lambda: os.kill(pid, 9)):\n"
        "    try:\n        change()\n        print('done')\n    except PermissionError:\n        print('refused')\n"
    )

    def act() -> bool:
        (tmp_path / "mine").write_text("x")
        try:
            (tmp_path / "secret").read_text()
        except PermissionError:
            command = ["/usr/bin/env", "python3", "-I", "-c", tries, str(os.getpid())]
            said = subprocess.run(command, user=USER, group=USER, extra_groups=[], stdout=subprocess.PIPE, check=True)
            return said.stdout.split() == [b"refused"] * 4
        return False

    assert directories.as_user(job, act, 20.0, "try")
    assert (tmp_path / "mine").stat().st_uid == USER
    rights = directories._Rights(job)
    with pytest.raises(PermissionError):
        (tmp_path / "secret").read_text()
    rights.back()
    assert (tmp_path / "secret").read_text() == "root's"
