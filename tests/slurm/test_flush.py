"""What an ended job has only in memory, brought to its lower tiers by a process of its user."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hooks_kit import (
    NEXT,
    SLEEP,
    USER,
    as_root,
    as_user,
    environment,
    environments_of,
    memory_of,
    run,
    settings,
)
from waiting import until

from slurm.hooks.hook import FIT, HookJob
from slurm.hooks.ledger import Ledger
from slurm.hooks.places import Places
from slurm.hooks.scope import MOST_MEMORY_BYTES, MOST_PROCESSES, Scope
from slurm.hooks.strays import kill_strays

PROGRAM = """#!/bin/sh
# In place of our Python, which the tests' users may not reach: tells what it was started as, then stays.
{{ id -u; id -G; env; echo nice=$(nice); echo core=$(ulimit -c); pwd; echo "$@"; ls /proc/$$/fd; }} >{said}.new
mv {said}.new {said}
exec sleep 60
"""


RUNNING = Path(__file__).parent / "recorded" / "job_running.txt"


@as_root
class TestFlush:
    """An ended job's memory goes to its lower tiers, as its user and behind nobody's back."""

    @pytest.fixture
    def said(self, places: Places, job: HookJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
        """The file in which what is started tells of itself; whatever it is has ended afterwards."""
        folder = tmp_path / "said"
        folder.mkdir()
        os.chown(folder, USER, USER)
        program = tmp_path / "python"
        program.write_text(PROGRAM.format(said=folder / "it"))
        program.chmod(0o755)
        monkeypatch.setattr("sys.executable", str(program))
        run("prolog", places, environment(job))
        (memory_of(places, job) / "shard").write_text("state")
        yield folder / "it"
        kill_strays(job, 10)

    def ask(self, places: Places, job: HookJob, below: str = "") -> None:
        (memory_of(places, job) / below).mkdir(exist_ok=True)
        (memory_of(places, job) / below / "on_job_end.json").write_text("{}")

    def until_said(self, said: Path) -> list[str]:
        until(said.exists, "what the epilog starts")
        return said.read_text().splitlines()

    def flushing(self, job: HookJob) -> list[str]:
        return [entry for entry in environments_of(USER) if f"SLURM_JOB_ID={job.job_id}" in entry]

    @pytest.mark.parametrize("below", ["", "mpi-0a1b"])
    def test_it_is_the_users_with_nothing_of_roots(self, places: Places, job: HookJob, said: Path, below: str) -> None:
        self.ask(places, job, below)
        secret = {"SECRET_OF_SLURMD": "1", "SLURM_JOB_NAME": "x"}
        assert run("epilog", places, environment(job, **secret)) == FIT
        lines = self.until_said(said)
        assert lines[0] == str(USER) and set(lines[1].split()) == {str(job.gid)}
        variables = {line.partition("=")[0] for line in lines if "=" in line} - {"PWD", "OLDPWD", "_", "SHLVL"}
        assert variables == {"PATH", "LANG", "SLURM_JOB_ID", "nice", "core"}
        assert {"nice=19", "core=0", "/"} <= set(lines)
        assert f"-I -m ckpt.epilog {memory_of(places, job)} --within 900" in lines
        descriptors = {int(line) for line in lines if line.isdigit()} - {USER}
        assert {descriptor for descriptor in descriptors if descriptor < 10} == {0, 1, 2}  # from 10 on: the shell's
        assert "goes to its lower tiers, within 900 s" in Path(places.log).read_text()

    def test_a_job_that_did_not_ask_or_a_site_that_does_not_allow_it_starts_nothing(
        self, places: Places, job: HookJob, said: Path
    ) -> None:
        run("epilog", places, environment(job))
        self.ask(places, job)
        settings(places, "flush_memory_s: 0\n")
        run("epilog", places, environment(job))
        assert self.flushing(job) == [] and not said.exists()
        assert "lower tiers" not in Path(places.log).read_text()

    @pytest.mark.parametrize("comes_back", [True, False])
    def test_it_ends_when_the_job_is_back_or_its_memory_is_freed(
        self, places: Places, job: HookJob, said: Path, comes_back: bool
    ) -> None:
        self.ask(places, job)
        settings(places, "keep_memory_s: 0\nflush_memory_s: 900\n")
        run("epilog", places, environment(job))
        self.until_said(said)
        assert self.flushing(job)
        run("prolog", places, environment(NEXT))
        assert self.flushing(job) and (memory_of(places, job) / "shard").exists()  # kept for it all that time
        ledger = Ledger(places.ledger)
        (entry,) = [entry for entry in ledger if entry.job.job_id == job.job_id]
        if not comes_back:
            ledger.end(entry, 0)
        run("prolog", places, environment(job if comes_back else NEXT))
        assert self.flushing(job) == []
        assert (memory_of(places, job) / "shard").exists() == comes_back

    def test_a_prolog_that_is_called_again_while_the_job_runs_ends_nothing(self, places: Places, job: HookJob) -> None:
        """A slurmd that was killed has forgotten that it called it."""
        run("prolog", places, environment(job))
        process = as_user(USER, SLEEP, SLURM_JOB_ID=str(job.job_id))
        try:
            run("prolog", places, environment(job))
            assert process.poll() is None
        finally:
            process.kill()
            process.communicate()

    @pytest.mark.parametrize("hostile", ["link to another's", "pipe", "directory is a link"])
    def test_what_the_user_puts_there_only_he_reads(
        self, places: Places, job: HookJob, said: Path, tmp_path: Path, hostile: str
    ) -> None:
        """Root looks at no file of the job's: what it cannot see as the user is not there."""
        precious = tmp_path / "precious"
        precious.mkdir(mode=0o700)
        (precious / "on_job_end.json").write_text("{}")
        request = memory_of(places, job) / "on_job_end.json"
        if hostile == "link to another's":
            request.symlink_to(precious / "on_job_end.json")
        elif hostile == "pipe":
            os.mkfifo(request)
        else:
            memory_of(places, job).rename(tmp_path / "away")
            memory_of(places, job).symlink_to(precious)
        assert run("epilog", places, environment(job)) == FIT
        assert self.flushing(job) == [] and not said.exists()

    @pytest.mark.parametrize("end", ["by itself", "the job is back", "its memory is freed"])
    def test_what_it_detached_ends_with_it_though_nothing_in_it_names_the_job(
        self, places: Places, job: HookJob, said: Path, tmp_path: Path, end: str
    ) -> None:
        """A child without environment, session and parent: the neighbour would find it beside the next job."""
        lasts = "exit 0" if end == "by itself" else "exec sleep 60"
        program = f"env -i setsid sleep 61 & echo $! >{said}.new; mv {said}.new {said}; {lasts}\n"
        (tmp_path / "python").write_text(f"#!/bin/sh\ncat /proc/self/cgroup >{said}.group\n{program}")
        self.ask(places, job)
        settings(places, "keep_memory_s: 0\n")
        run("epilog", places, environment(job))
        (detached,) = map(int, self.until_said(said))
        if end != "by itself":
            until(lambda: self.is_alive(detached), "what it detached")
        if end == "its memory is freed":
            ledger = Ledger(places.ledger)
            ledger.end(next(entry for entry in ledger if entry.job.job_id == job.job_id), 0)
        if end != "by itself":
            run("prolog", places, environment(job) if end == "the job is back" else environment(NEXT))
        until(lambda: not self.is_alive(detached), "the end of what it detached")
        assert f"/holdfast-flush-{job.job_id}" in Path(f"{said}.group").read_text()
        until(lambda: not list(Path("/sys/fs/cgroup").glob(f"*/holdfast-flush-{job.job_id}")), "the end of its scope")

    @staticmethod
    def is_alive(pid: int) -> bool:
        return b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes() if Path(f"/proc/{pid}").exists() else False

    @pytest.mark.parametrize(
        ("tres", "memory_bytes", "cpus"),
        [("cpu=6,mem=1800M,node=3", 600 << 20, 2), ("cpu=96,mem=3T,node=3", MOST_MEMORY_BYTES, 32), ("", None, 1)],
    )
    def test_it_has_the_limits_of_the_job_within_a_ceiling(
        self,
        places: Places,
        job: HookJob,
        said: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        tres: str,
        memory_bytes: int | None,
        cpus: int,
    ) -> None:
        """The next job has the rest of the node. The controller says what the job had; one that is silent, nothing."""
        record = RUNNING.read_text().replace("JobId=7 ", f"JobId={job.job_id} ").replace("cpu=3,node=3", tres)
        (tmp_path / "record").write_text(record)
        scontrol = tmp_path / "bin" / "scontrol"
        scontrol.parent.mkdir()
        scontrol.write_text(f"#!/bin/sh\n{f'exec cat {tmp_path}/record' if tres else 'exit 1'}\n")
        scontrol.chmod(0o755)
        monkeypatch.setenv("PATH", f"{scontrol.parent}:{os.environ['PATH']}")
        group = f"/sys/fs/cgroup/{{}}holdfast-flush-{job.job_id}"
        look = [f"cat {group.format('memory/')}/memory.limit_in_bytes || cat {group.format('')}/memory.max"]
        look += [f"cat {group.format('cpu/')}/cpu.cfs_quota_us || cut -d' ' -f1 {group.format('')}/cpu.max"]
        program = f"#!/bin/sh\n{{ {'; '.join(look)}; }} >{said}.new 2>/dev/null; mv {said}.new {said}\n"
        (tmp_path / "python").write_text(program)
        self.ask(places, job)
        run("epilog", places, environment(job))
        assert self.until_said(said) == [str(memory_bytes or MOST_MEMORY_BYTES), str(cpus * 100_000)]

    @pytest.mark.parametrize("version", ["both", "2"])
    def test_it_opens_no_device_of_the_node(
        self,
        places: Places,
        job: HookJob,
        said: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        version: str,
    ) -> None:
        """A GPU, say, which the next job has. /dev/net/tun stands for it: every kernel here has that driver."""
        gpu = tmp_path / "gpu"
        os.mknod(gpu, stat.S_IFCHR, os.makedev(10, 200))
        gpu.chmod(0o666)
        if version == "2":
            monkeypatch.setattr("slurm.hooks.scope._KINDS", ("freezer",))
        look = f"cat {gpu}; for device in null zero urandom; do head -c 1 /dev/$device >/dev/null && echo ok; done"
        (tmp_path / "python").write_text(f"#!/bin/sh\n{{ {look}; }} >{said}.new 2>&1; mv {said}.new {said}\n")
        self.ask(places, job)
        run("epilog", places, environment(job))
        first, *others = self.until_said(said)
        assert "Operation not permitted" in first and others == ["ok"] * 3
        own = as_user(USER, f"cat {gpu} 2>&1 | grep -q permitted || echo ready")
        own.communicate()  # as_user() has read it: without the scope the user may open it

    def test_its_processes_are_killed_where_there_is_version_1_alone(
        self, job: HookJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if not Path("/sys/fs/cgroup/freezer/cgroup.procs").exists():
            pytest.skip("needs control groups of version 1")
        (tmp_path / "freezer").symlink_to("/sys/fs/cgroup/freezer")
        monkeypatch.setattr("slurm.hooks.scope.ROOT", str(tmp_path))
        group = Path(f"/sys/fs/cgroup/freezer/holdfast-flush-{job.job_id}")
        group.mkdir()
        flush = subprocess.Popen(["sleep", "60"])
        try:
            (group / "cgroup.procs").write_text(str(flush.pid))
            assert Scope(job).end(10)
            assert flush.wait(10) == -signal.SIGKILL
        finally:
            flush.kill()
        assert not group.exists()
        assert not Path("/cgroup.kill").exists(), "written outside of any control group"

    def test_it_starts_a_bounded_number_of_processes_and_cannot_leave_its_scope(
        self, places: Places, job: HookJob, said: Path, tmp_path: Path
    ) -> None:
        leave = "for group in /sys/fs/cgroup /sys/fs/cgroup/*; do echo $$ >$group/cgroup.procs && echo left; done"
        scope = f"holdfast-flush-{job.job_id}/pids.max"
        look = f"{leave}; cat /sys/fs/cgroup/pids/{scope} || cat /sys/fs/cgroup/{scope}"
        program = f"#!/bin/sh\n{{ {look}; }} >{said}.new 2>/dev/null; mv {said}.new {said}"
        (tmp_path / "python").write_text(f"{program}\n")
        self.ask(places, job)
        run("epilog", places, environment(job))
        assert self.until_said(said) == [str(MOST_PROCESSES)]
