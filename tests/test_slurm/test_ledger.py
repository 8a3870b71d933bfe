"""The ledger of a node's jobs, where others hold it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from hooks_kit import (
    NEXT,
    as_root,
    environment,
    memory_of,
    run,
)
from waiting import until

from slurm.hooks import ledger as ledgers
from slurm.hooks.directories import make_job_dir, make_user_dir
from slurm.hooks.hook import FIT, Hook, HookJob
from slurm.hooks.ledger import Ledger, LedgerBusy
from slurm.hooks.places import Places
from slurm.hooks.prolog import free_memory, prolog
from slurm.hooks.settings import HookSettings

HOLDER = """
import fcntl, os, sys
directory = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(directory, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


class TestLedgerThatAnotherProcessHolds:
    @pytest.fixture
    def holder(self, places: Places, job: HookJob) -> Iterator[subprocess.Popen[bytes]]:
        Ledger(places.ledger).begin(job)  # only then there is something to hold
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, places.ledger], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        yield process
        process.kill()
        process.communicate()

    def test_it_is_waited_for_and_then_named(
        self, places: Places, job: HookJob, holder: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ledger = Ledger(places.ledger)
        (entry,) = ledger
        monkeypatch.setattr(ledgers, "_LOCK_S", 0.1)
        held = rf"held by process {holder.pid} \(.*sys.stdin.read\(\) {places.ledger}\)"
        for change in (partial(ledger.begin, job), partial(ledger.end, entry, 900)):
            with pytest.raises(LedgerBusy, match=held):
                change()
        assert [found.keep_until_s for found in ledger] == [None]
        assert run("prolog", places, environment(job)) == FIT
        assert f"held by process {holder.pid} " in Path(places.log).read_text()

    def test_it_is_waited_for_until_it_lets_go(
        self, places: Places, job: HookJob, holder: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ledgers.time, "sleep", lambda _: holder.communicate())  # it ends when somebody waits
        Ledger(places.ledger).begin(HookJob(job_id=NEXT.job_id, uid=job.uid, gid=job.gid, cluster=job.cluster))
        assert [entry.job.job_id for entry in Ledger(places.ledger)] == [job.job_id, NEXT.job_id]


FREER = """
import sys, time
from slurm.hooks import prolog
from slurm.hooks.hook import Hook
from slurm.hooks.places import Places
from slurm.hooks.settings import HookSettings
remove = prolog.remove_job_dir
def slowly(*arguments):
    print("removing", flush=True)
    sys.stdin.readline()
    remove(*arguments)
prolog.remove_job_dir = slowly
places = Places(root=sys.argv[1], memory=sys.argv[2])
prolog.free_memory(Hook(places=places, settings=HookSettings(), env={}, deadline_s=time.monotonic() + 55), 20)
"""


@as_root
def test_a_job_that_comes_back_while_its_memory_is_freed_begins_after_that(
    places: Places, job: HookJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("prolog", places, environment(job))
    (memory_of(places, job) / "shard").write_text("state")
    run("epilog", places, environment(job))
    (entry,) = (ledger := Ledger(places.ledger))
    ledger.end(entry, 0)
    freer = subprocess.Popen(
        [sys.executable, "-c", FREER, places.root, places.memory], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert freer.stdout is not None and freer.stdout.readline() == b"removing\n"
        monkeypatch.setattr(
            ledgers.time, "sleep", lambda _: freer.communicate(b"\n")
        )  # it goes on when it is waited for
        hook = Hook(places=places, settings=HookSettings(), env=environment(job), deadline_s=time.monotonic() + 20)
        assert prolog(hook) == FIT
        if freer.returncode is None:
            freer.communicate(b"\n")
    finally:
        freer.kill()
    assert [entry.keep_until_s for entry in Ledger(places.ledger)] == [None]
    assert list(memory_of(places, job).iterdir()) == []


@pytest.fixture
def freezer() -> Iterator[Path]:
    """A control group whose processes hang in the kernel, as on a dead mount: no signal ends them."""
    group = Path(f"/sys/fs/cgroup/freezer/holdfast-test-{os.getpid()}")
    if not group.parent.is_dir():
        pytest.skip("needs cgroup v1's freezer")
    group.mkdir()
    yield group
    (group / "freezer.state").write_text("THAWED")
    until(lambda: not (group / "cgroup.procs").read_text(), "the end of what was frozen")
    group.rmdir()


@as_root
def test_a_child_that_hangs_while_it_frees_a_jobs_memory_is_not_waited_for_by_the_job(
    places: Places, job: HookJob, freezer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, begins = os.pipe()

    def hang(*_: object, **__: object) -> None:
        os.write(begins, str(os.getpid()).encode())
        signal.pause()

    def wait(*_: object) -> tuple[list[int], list[int], list[int]]:
        (freezer / "cgroup.procs").write_text(os.read(begun, 10).decode())
        (freezer / "freezer.state").write_text("FROZEN")
        return [], [], []

    monkeypatch.setattr("slurm.hooks.directories.remove_tree", hang)
    monkeypatch.setattr("slurm.hooks.directories.select", SimpleNamespace(select=wait))
    make_user_dir(places.memory, job)
    make_job_dir(places.memory, job)
    ledger = Ledger(places.ledger)
    ledger.begin(job)
    for entry in ledger:
        ledger.end(entry, keep_s=0.0)
    free_memory(Hook(places=places, settings=HookSettings(), env={}, deadline_s=time.monotonic() + 60.0), 30.0)
    assert (freezer / "cgroup.procs").read_text(), "it was to hang"
    ledger.begin(job, limit_s=0.0)
    os.close(begun)
    os.close(begins)
