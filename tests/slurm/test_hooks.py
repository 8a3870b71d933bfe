"""Slurm's hooks as root, as slurmd calls them, on directories of the test: hostile names, links, files and hangs."""

from __future__ import annotations

import json
import os
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
from waiting import until

from launcher.clusters.slurm import SlurmCluster
from launcher.runner.memory import memory_dir
from slurm.client import Slurm
from slurm.command import CommandError, Result, Runner
from slurm.hooks import departures
from slurm.hooks import ledger as ledgers
from slurm.hooks.departures import see_off_forgotten
from slurm.hooks.directories import DirectoryError, job_dir, make_job_dir, make_user_dir
from slurm.hooks.drains import drain_node, settle_drain
from slurm.hooks.entry import HOOKS, EntryError, check_trusted, scripts
from slurm.hooks.epilog import epilog
from slurm.hooks.health import health
from slurm.hooks.hook import FIT, UNFIT, EnvironmentRefused, Hook, HookJob, run_hook
from slurm.hooks.incidents import kernel_messages, record_incidents
from slurm.hooks.ledger import Ledger, LedgerBusy
from slurm.hooks.places import Places, Settings, SettingsError
from slurm.hooks.prolog import free_memory, prolog
from slurm.hooks.strays import _processes_of as processes_of
from slurm.hooks.strays import kill_strays
from slurm.hooks.verdict import read_verdict
from slurm.testbed.plan import account

ROOT = Path(__file__).resolve().parents[2]
USER, OTHER = account("nobody").pw_uid, account("daemon").pw_uid
BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text().strip()

as_root = pytest.mark.slurm  # hooks become other users: they need root, as the clusters of the other tests do


@pytest.fixture
def places(tmp_path: Path) -> Places:
    memory = tmp_path / "memory"
    memory.mkdir()
    memory.chmod(0o1777)
    for level in (tmp_path, *tmp_path.parents):  # pytest's own are for root alone
        if level.stat().st_mode & 0o005 != 0o005:
            level.chmod(0o755)
    return Places(root=tmp_path / "root", memory=memory)


@pytest.fixture
def job() -> HookJob:
    return HookJob(job_id=77, uid=USER, gid=account("nobody").pw_gid, cluster="c")


def environment(job: HookJob, **more: str) -> dict[str, str]:
    numbers = {"SLURM_JOB_ID": str(job.job_id), "SLURM_JOB_UID": str(job.uid), "SLURM_JOB_GID": str(job.gid)}
    return {**numbers, "SLURM_CLUSTER_NAME": job.cluster, "SLURMD_NODENAME": "n1", **more}


class TenNodes:
    """scontrol of a cluster n1 ... n10.

    Attributes:
        drained: nodes that hooks of ours have drained.
        meanwhile: nodes whose drain is seen only after the first of this one.
        reason: what all of them are drained for.
    """

    def __init__(self, *drained: str, meanwhile: Sequence[str] = (), reason: str = "holdfast: x") -> None:
        self.drained = set(drained)
        self.reason = reason
        self.meanwhile = meanwhile

    def __call__(self, argv: Sequence[str], **_: object) -> Result:
        text = ""
        if argv[:2] == ["scontrol", "show"]:
            flags = {name: "+DRAIN" if name in self.drained else "" for name in (f"n{n}" for n in range(1, 11))}
            line = "NodeName={} CPUTot=8 State=IDLE{} Reason={} [root@2026-11-20T23:19:59]\n"
            text = "".join(line.format(*item, self.reason) for item in flags.items())
        elif "State=DRAIN" in argv:
            self.drained |= {argv[2].removeprefix("NodeName="), *self.meanwhile}
        else:
            assert argv[3] == "State=RESUME"
            self.drained.remove(argv[2].removeprefix("NodeName="))
        return Result(argv=tuple(argv), returncode=0, stdout=text, stderr="", seconds=0.0)


def silent(argv: Sequence[str], **_: object) -> Result:
    """scontrol where no controller answers."""
    result = Result(argv=tuple(argv), returncode=1, stdout="", stderr="Unable to contact slurm controller", seconds=0)
    raise CommandError(result, "exit code 1")


def settings(places: Places, text: str) -> None:
    file = Path(places.settings_file)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def verdict(places: Places, status: str, **changes: object) -> None:
    check = {"name": "gpu_count", "status": status, "measured": "7", "expected": "8", "advice": "replace"}
    content = {
        "version": 1,
        "node": "n1",
        "time_s": time.time(),
        "boot_id": BOOT_ID,
        "level": "quick",
        "status": status,
    }
    file = Path(places.verdict)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content | {"checks": [check]} | changes))


def run(name: str, places: Places, env: dict[str, str], limit_s: float = 20.0, slurm: Runner | None = None) -> int:
    body = partial({"prolog": prolog, "epilog": epilog}[name], slurm=Slurm(run=slurm or TenNodes()))
    return run_hook(name, body, places=places, env=env, limit_s=limit_s)


def memory_of(places: Places, job: HookJob) -> Path:
    return Path(places.memory) / f"holdfast-{job.uid}" / job.run


def as_user(uid: int, script: str, **env: str) -> subprocess.Popen[bytes]:
    """A shell script of another user, who may not reach our Python; it says when it is ready."""
    process = subprocess.Popen(
        ["/bin/sh", "-c", script],
        user=uid, group=uid, extra_groups=[], env=env, cwd="/", stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    return process


SLEEP = "echo ready; exec sleep 60"
ENDED = 7  # of a hook's body that has come to its end


@as_root
class TestProlog:
    def test_the_jobs_memory_directory_is_its_users_alone(self, places: Places, job: HookJob) -> None:
        assert run("prolog", places, environment(job)) == FIT
        for level in (memory_of(places, job), memory_of(places, job).parent):
            facts = level.lstat()
            assert (facts.st_uid, facts.st_mode & 0o7777) == (USER, 0o700)

    def test_tasks_are_told_where_it_is_until_the_job_has_left(self, places: Places, job: HookJob) -> None:
        script = scripts(root=places.root)["task_prolog.sh"]

        def told() -> bytes:
            return subprocess.run(
                ["bash", "-c", script], env=environment(job), stdout=subprocess.PIPE, check=True
            ).stdout

        assert told() == b""
        run("prolog", places, environment(job))
        assert told() == f"export HOLDFAST_MEMORY_DIR={memory_of(places, job)}\n".encode()
        run("epilog", places, environment(job))
        assert told() == b""

    def test_what_is_there_stays_for_a_requeued_job(self, places: Places, job: HookJob) -> None:
        run("prolog", places, environment(job))
        (memory_of(places, job) / "shard").write_text("state")
        run("epilog", places, environment(job))
        assert run("prolog", places, environment(job)) == FIT
        assert (memory_of(places, job) / "shard").read_text() == "state"
        assert [entry.keep_until_s for entry in Ledger(places.ledger)] == [None]

    @pytest.mark.parametrize("planted", ["link", "file", "directory of another user"])
    def test_what_another_user_planted_is_moved_away_and_not_followed(
        self, places: Places, job: HookJob, tmp_path: Path, planted: str
    ) -> None:
        target = tmp_path / "etc"
        target.mkdir(mode=0o755)
        place = memory_of(places, job).parent
        if planted == "link":
            place.symlink_to(target)
            os.lchown(place, OTHER, OTHER)
        elif planted == "file":
            place.write_text("x")
            os.chown(place, OTHER, OTHER)
        else:
            place.mkdir()
            os.chown(place, OTHER, OTHER)
        assert run("prolog", places, environment(job)) == FIT
        assert memory_of(places, job).is_dir() and place.lstat().st_uid == USER
        assert list(target.iterdir()) == [] and target.stat().st_uid == 0
        assert "moved to .holdfast-planted-" in Path(places.log).read_text()

    def test_a_link_that_the_user_put_for_his_job_is_left_alone(
        self, places: Places, job: HookJob, tmp_path: Path
    ) -> None:
        target = tmp_path / "etc"
        target.mkdir(mode=0o755)
        make_user_dir(places.memory, job)
        memory_of(places, job).symlink_to(target)
        assert run("prolog", places, environment(job)) == FIT
        assert list(target.iterdir()) == [] and target.stat().st_uid == 0
        assert "not a directory" in Path(places.log).read_text()

    def test_a_parent_that_is_not_roots_is_refused(self, places: Places, job: HookJob) -> None:
        os.chown(places.memory, OTHER, OTHER)
        with pytest.raises(DirectoryError, match="expected root's own"):
            make_user_dir(places.memory, job)

    @pytest.mark.parametrize(
        ("changes", "code"),
        [
            ({}, UNFIT),
            ({"time_s": time.time() - 100_000}, FIT),  # too old to act on
            ({"boot_id": "another"}, FIT),
            ({"version": 2}, FIT),
            ({"checks": None}, FIT),
        ],
    )
    def test_a_node_that_failed_a_recent_check_takes_no_job(
        self, places: Places, job: HookJob, changes: dict[str, object], code: int
    ) -> None:
        settings(places, "drain: on\n")
        verdict(places, "critical", **changes)
        assert run("prolog", places, environment(job)) == code
        assert memory_of(places, job).is_dir() == (code == FIT)

    @pytest.mark.parametrize("status", ["ok", "warning", "unknown", "skipped"])
    def test_only_what_was_observed_to_fail_keeps_a_job_away(self, places: Places, job: HookJob, status: str) -> None:
        settings(places, "drain: on\n")
        verdict(places, status)
        assert run("prolog", places, environment(job)) == FIT

    @pytest.mark.parametrize(
        ("slurm", "code", "said"),
        [
            (TenNodes("n2"), FIT, "1 others are drained, max_drained is 10% of 10"),
            (TenNodes("n1", "n2"), UNFIT, "not fit"),  # drained already
            (TenNodes(meanwhile=["n3"]), FIT, "1 others are drained"),
            (silent, FIT, "whether the node may be drained is not known"),
        ],
        ids=["too many are drained", "this one is drained", "others at the same moment", "Slurm is silent"],
    )
    def test_a_check_that_is_wrong_everywhere_does_not_keep_jobs_away_from_all_nodes(
        self, places: Places, job: HookJob, slurm: Runner, code: int, said: str
    ) -> None:
        settings(places, "drain: on\n")
        verdict(places, "critical")
        assert run("prolog", places, environment(job), slurm=slurm) == code
        assert said in Path(places.log).read_text()

    def test_what_was_made_of_a_verdict_lasts_until_the_next_one_or_until_it_cannot_be_trusted(
        self, places: Places, job: HookJob
    ) -> None:
        settings(places, "drain: on\n")
        verdict(places, "ok", time_s=time.time() - 1000)
        first, again = read_verdict(places), read_verdict(places)
        assert Path(places.verdict_read).exists()
        assert (again.status, again.reason) == (first.status, first.reason)
        assert again.age_s == pytest.approx(1000, abs=100)
        os.chown(places.verdict, OTHER, OTHER)
        assert read_verdict(places).status == "unknown"
        verdict(places, "critical")
        os.chown(places.verdict, 0, 0)
        assert run("prolog", places, environment(job)) == UNFIT

    def test_what_others_could_have_made_of_a_verdict_is_not_believed(self, places: Places) -> None:
        verdict(places, "critical")
        facts = os.stat(places.verdict)
        marks = (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
        kept = Path(places.verdict_read)
        kept.parent.mkdir(parents=True)
        kept.write_text(f"{':'.join(map(str, marks))} ok {time.time()}\n")
        assert read_verdict(places).status == "ok"  # it would be root's word
        os.chown(kept, OTHER, OTHER)
        assert read_verdict(places).status == "critical"

    def test_by_default_a_failure_is_only_told(self, places: Places, job: HookJob) -> None:
        verdict(places, "critical")
        assert run("prolog", places, environment(job)) == FIT
        assert "not fit: gpu_count: 7, expected 8" in Path(places.log).read_text()

    def test_a_verdict_that_a_user_could_have_written_is_not_believed(self, places: Places, job: HookJob) -> None:
        settings(places, "drain: on\n")
        verdict(places, "critical")
        os.chown(places.verdict, OTHER, OTHER)
        assert read_verdict(places).status == "unknown"
        assert run("prolog", places, environment(job)) == FIT

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ("size=1m", "{memory}: 0 of 1 MiB free: checkpoints in memory may find no room"),
            ("size=64m,nr_inodes=20", "no memory of this node for checkpoints: {memory}/holdfast-{uid}: No space left"),
        ],
        ids=["no memory", "no inodes"],
    )
    def test_a_memory_that_users_filled_keeps_no_job_away_which_is_told(
        self, places: Places, job: HookJob, options: str, said: str
    ) -> None:
        settings(places, "drain: on\n")
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"mode=1777,{options}", "tmpfs", places.memory], check=True)
        try:
            fill = f"cd {places.memory} && for n in `seq 30`; do head -c 100k /dev/zero >$n || :; done 2>&-; echo ready"
            as_user(OTHER, fill).communicate()
            assert run("prolog", places, environment(job)) == FIT
        finally:
            subprocess.run(["umount", places.memory], check=True)
        words = f"print holdfast: n1: {said.format(memory=places.memory, uid=USER)}"
        assert words in Path(places.tasks, str(job.job_id)).read_text()
        if "inodes" not in options:
            assert f"is used by uid {OTHER}: " in Path(places.log).read_text()

    def test_a_disk_without_a_directory_for_the_user_leaves_him_his_memory(
        self, places: Places, job: HookJob, tmp_path: Path
    ) -> None:
        disk = tmp_path / "disk"
        disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(disk)], check=True)
        try:
            os.chown(disk, OTHER, OTHER)
            settings(places, f"local_disk: {disk}\n")
            assert run("prolog", places, environment(job)) == FIT
        finally:
            subprocess.run(["umount", str(disk)], check=True)
        memory, wrong = Path(places.tasks, str(job.job_id)).read_text().splitlines()
        assert memory == f"export HOLDFAST_MEMORY_DIR={memory_of(places, job)}"
        assert wrong.startswith(f"print holdfast: n1: no local disk of this node for checkpoints: {disk}: mode ")

    def test_what_is_made_for_a_user_is_made_with_his_rights_and_no_longer(self, places: Places, job: HookJob) -> None:
        groups = os.getgroups()
        above = Path(make_user_dir(places.memory, job))
        os.chown(above, OTHER, OTHER)
        with pytest.raises(DirectoryError, match="Permission denied"):
            make_job_dir(places.memory, job)
        assert (os.geteuid(), os.getegid(), os.getgroups()) == (0, 0, groups)
        os.chown(above, USER, USER)
        assert Path(make_job_dir(places.memory, job)).stat().st_gid == job.gid

    def test_a_local_disk_that_is_not_mounted_keeps_jobs_away(
        self, places: Places, job: HookJob, tmp_path: Path
    ) -> None:
        settings(places, f"drain: on\nlocal_disk: {tmp_path}\n")
        assert run("prolog", places, environment(job)) == UNFIT
        assert f"{tmp_path}: no file system is mounted there" in Path(places.log).read_text()


@as_root
class TestEpilog:
    def test_what_the_job_left_running_ends_and_nothing_else(self, places: Places, job: HookJob) -> None:
        number = str(job.job_id)
        stray = as_user(USER, SLEEP, SLURM_JOB_ID=number)
        other_user = as_user(OTHER, SLEEP, SLURM_JOB_ID=number)
        other_job = as_user(USER, SLEEP, SLURM_JOB_ID="78")
        try:
            assert run("epilog", places, environment(job)) == FIT
            assert stray.wait(10) == -9
            assert other_user.poll() is None and other_job.poll() is None
        finally:
            for process in (stray, other_user, other_job):
                process.kill()
                process.communicate()

    def test_a_process_that_goes_on_forking_ends_too(self, places: Places, job: HookJob) -> None:
        forks = "fork() { sleep 0.01; fork & exit; }; echo ready; fork &"
        first = as_user(USER, forks, SLURM_JOB_ID=str(job.job_id))
        try:
            assert run("epilog", places, environment(job)) == FIT
            assert not [entry for entry in _processes_of(USER) if f"SLURM_JOB_ID={job.job_id}" in entry]
        finally:
            first.wait(10)  # it ended with its first fork
            first.stdout.close()

    def test_a_process_that_begins_while_they_are_looked_for_ends_too(
        self, job: HookJob, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        strays: list[subprocess.Popen[bytes]] = []

        def scan(uid: int) -> list[int]:
            if strays:
                return processes_of(uid)
            strays.append(as_user(USER, SLEEP, SLURM_JOB_ID=str(job.job_id)))
            return []

        monkeypatch.setattr("slurm.hooks.strays._processes_of", scan)
        try:
            assert kill_strays(job, 10) == []
            assert strays[0].wait(10) == -9
        finally:
            strays[0].kill()
            strays[0].communicate()

    def test_memory_is_kept_for_a_requeue_and_freed_when_its_time_is_over(self, places: Places, job: HookJob) -> None:
        settings(places, "keep_memory_s: 0\n")
        run("prolog", places, environment(job))
        (memory_of(places, job) / "shard").write_text("state")
        settings(places, "keep_memory_s: 600\n")
        run("epilog", places, environment(job))
        next_job = HookJob(job_id=78, uid=OTHER, gid=OTHER, cluster="c")
        run("prolog", places, environment(next_job))
        assert (memory_of(places, job) / "shard").exists()

        settings(places, "keep_memory_s: 0\n")
        run("epilog", places, environment(job))
        run("prolog", places, environment(next_job))
        assert not memory_of(places, job).parent.exists()
        assert memory_of(places, next_job).is_dir()

    def test_freeing_follows_no_link_out_of_the_users_reach(self, places: Places, job: HookJob, tmp_path: Path) -> None:
        precious = tmp_path / "precious"
        precious.mkdir()
        (precious / job.run).mkdir()
        (precious / job.run / "file").write_text("x")
        settings(places, "keep_memory_s: 0\n")
        run("prolog", places, environment(job))
        (memory_of(places, job) / "inner").symlink_to(precious)
        run("epilog", places, environment(job))
        assert (precious / job.run / "file").exists()

        run("prolog", places, environment(job))  # now the user's own level becomes a link
        user_dir = memory_of(places, job).parent
        user_dir.rename(user_dir.with_name("elsewhere"))
        user_dir.symlink_to(precious)
        run("epilog", places, environment(job))
        run("prolog", places, environment(HookJob(job_id=78, uid=OTHER, gid=OTHER, cluster="c")))
        assert (precious / job.run / "file").exists()

    @pytest.mark.parametrize(("drain", "code"), [("on", UNFIT), ("off", FIT)])
    def test_processes_that_cannot_be_killed_drain_the_node_with_the_reason(
        self, places: Places, job: HookJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drain: str, code: int
    ) -> None:
        """Slurm's own "Epilog error" would be an admin's affair to healing."""
        monkeypatch.setattr(departures, "kill_strays", lambda job, limit_s: [99])  # nothing hangs in this kernel
        settings(places, f"drain: {drain}\n")
        asked, nodes = tmp_path / "asked", TenNodes()
        asked.touch()

        def scontrol(argv: Sequence[str], **_: object) -> Result:
            with asked.open("a") as file:
                print(*argv, file=file)
            return nodes(argv)

        assert run("epilog", places, environment(job), slurm=scontrol) == code
        ours = "NodeName=n1 State=DRAIN Reason=holdfast: processes of job 77 hang in the kernel, reboot: [99]"
        assert (ours in asked.read_text()) is (code == UNFIT)
        assert ("this node is not drained" in Path(places.log).read_text()) is (code == FIT)

    @pytest.mark.parametrize("is_there", [True, False])
    def test_the_kernels_log_is_read_where_a_driver_may_have_written_to_it(
        self, places: Places, job: HookJob, tmp_path: Path, is_there: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        driver, read = tmp_path / "nvidia", tmp_path / "read"
        if is_there:
            driver.mkdir()
        monkeypatch.setattr(departures, "DRIVERS", (str(driver),))
        monkeypatch.setattr("slurm.hooks.incidents.record_incidents", lambda *_: read.touch())
        run("prolog", places, environment(job))
        assert run("epilog", places, environment(job)) == FIT
        assert read.exists() == is_there

    def test_what_the_kernel_said_of_a_gpu_is_kept_against_the_node(self, tmp_path: Path, job: HookJob) -> None:
        kmsg = tmp_path / "kmsg"
        kmsg.write_text(
            "4,1,1000000,-;NVRM: Xid (PCI:0000:4f:00): 31, pid=9, name=python, Ch 00000008\n"
            "6,2,5000000,-;eth0: link becomes ready\n"
            " SUBSYSTEM=net\n"
            "4,3,6000000,-;NVRM: Xid (PCI:0000:4f:00): 79, pid=1234, GPU has fallen off the bus.\n"
            "4,4,6000001,-;NVRM: Xid (PCI:0000:4f:00): 79, pid=1234, GPU has fallen off the bus.\n"
            "6,5,7000000,-;a.out[9]: segfault at 0 ip 0 sp 0 error 4 in NVRM: Xid (PCI:0000:4f:00): 48[400000+1000]\n"
            "6,6,7000001,-;efa 0: me[9]: segfault at 0 ip 0 sp 0 error 4 in a.out[400000+1000]\n"
        )
        file = tmp_path / "incidents.jsonl"
        record_incidents(str(file), "n1", job, since_s=2.0, kmsg=str(kmsg))
        (row,) = map(json.loads, file.read_text().splitlines())
        assert (row["node"], row["job"], row["uid"]) == ("n1", 77, USER)
        assert "Xid (PCI:0000:4f:00): 79" in row["what"]


@as_root
class TestDepartureWithoutAnEpilog:
    """Slurm calls none of ours after a script of the site's that failed: the health hook looks."""

    def look(self, places: Places, job: HookJob, said: Callable[[], str]) -> float | None:
        """Until when the ledger has the job's memory stay, after a look that asks Slurm for the job."""

        def scontrol(argv: Sequence[str], **_: object) -> Result:
            assert argv == ["scontrol", "show", "job", "--oneliner", str(job.job_id)]
            return Result(argv=tuple(argv), returncode=0, stdout=said(), stderr="", seconds=0.0)

        def body(hook: Hook) -> int:
            see_off_forgotten(hook, Slurm(run=scontrol))
            return ENDED

        env = {"SLURMD_NODENAME": "n1"}  # a health check is told of no job
        assert run_hook("health", body, places=places, env=env, limit_s=20.0) == ENDED
        (entry,) = Ledger(places.ledger)
        return entry.keep_until_s

    @pytest.mark.parametrize(
        ("job_state", "nodes", "is_here"),
        [
            ("RUNNING", "n[1-2]", True),
            ("COMPLETING", "n1", True),
            ("RUNNING", "n2", False),
            ("PENDING", "(null)", False),
            ("COMPLETED", "n1", False),
        ],
    )
    def test_who_has_left_keeps_its_memory_for_a_while(
        self, places: Places, job: HookJob, job_state: str, nodes: str, is_here: bool
    ) -> None:
        run("prolog", places, environment(job))
        (memory_of(places, job) / "shard").write_text("state")
        stray = as_user(USER, SLEEP, SLURM_JOB_ID=str(job.job_id))
        try:
            keep_until_s = self.look(places, job, lambda: record(job, job_state, nodes))
            assert (keep_until_s is None) is is_here
            assert (memory_of(places, job) / "shard").exists()
            if job_state == "COMPLETED":
                assert stray.wait(10) == -9
            else:  # the job may be at its start at this moment
                assert stray.poll() is None
        finally:
            stray.kill()
            stray.communicate()

    def test_a_job_whose_name_looks_like_slurms_words_holds_up_no_health_check(
        self, places: Places, job: HookJob
    ) -> None:
        run("prolog", places, environment(job))
        assert self.look(places, job, lambda: f"JobName=x JobState=COMPLETED {record(job, 'RUNNING', 'n1')}") is None
        assert "whether job 77 is here is not known" in Path(places.log).read_text()

    def test_a_job_that_comes_back_while_it_is_looked_for_keeps_its_memory(self, places: Places, job: HookJob) -> None:
        run("prolog", places, environment(job))

        def comes_back() -> str:
            run("prolog", places, environment(job))
            return record(job, "PENDING", "(null)")

        assert self.look(places, job, comes_back) is None


def record(job: HookJob, state: str, nodes: str) -> str:
    return f"JobId={job.job_id} UserId=nobody({USER}) JobState={state} Partition=train NodeList={nodes}\n"


PROGRAM = """#!/bin/sh
# In place of our Python, which the tests' users may not reach: tells what it was started as, then stays.
{{ id -u; id -G; env; echo nice=$(nice); echo core=$(ulimit -c); pwd; echo "$@"; ls /proc/$$/fd; }} >{said}.new
mv {said}.new {said}
exec sleep 60
"""


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
        return [entry for entry in _processes_of(USER) if f"SLURM_JOB_ID={job.job_id}" in entry]

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
        assert f"-I -m ckpt.job_end {memory_of(places, job)} --within 900" in lines
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
        next_job = HookJob(job_id=78, uid=OTHER, gid=OTHER, cluster="c")
        run("prolog", places, environment(next_job))
        assert self.flushing(job) and (memory_of(places, job) / "shard").exists()  # kept for it all that time
        ledger = Ledger(places.ledger)
        (entry,) = [entry for entry in ledger if entry.job.job_id == job.job_id]
        if not comes_back:
            ledger.end(entry, 0)
        run("prolog", places, environment(job if comes_back else next_job))
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


@as_root
class TestFrame:
    def test_a_hook_that_hangs_is_given_up_and_drains_no_node(self, places: Places, capfd) -> None:
        def hang(hook: Hook) -> int:
            time.sleep(60)
            return UNFIT

        assert run_hook("prolog", hang, places=places, env={}, limit_s=0.3) == FIT
        assert "did not end within 0.3 s" in capfd.readouterr().err

    def test_a_hook_that_slurmd_kills_goes_on_and_ends_within_its_limit(self, places: Places, tmp_path: Path) -> None:
        """Slurm kills its script's process group: at its own limit, or when slurmd is stopped."""
        said = tmp_path / "said"

        def hang(hook: Hook) -> int:
            said.with_suffix(".new").write_text(str(os.getpid()))
            said.with_suffix(".new").rename(said)
            time.sleep(600)
            return UNFIT

        script = os.fork()
        if script == 0:
            os.setpgid(0, 0)
            os._exit(run_hook("epilog", hang, places=places, env={}, limit_s=1.0))
        until(said.exists, "the hook's body")
        body = os.pidfd_open(int(said.read_text()))
        try:
            os.killpg(script, signal.SIGKILL)
            os.waitpid(script, 0)
            ended = select.poll()
            ended.register(body, select.POLLIN)
            assert not ended.poll(0), "the body was in the script's process group"
            until(lambda: ended.poll(0), "the end of the body")
        finally:
            os.close(body)

    def test_a_hook_has_ended_when_its_pipe_closes(self, places: Places) -> None:
        """Where it has not, slurmd sleeps before it looks again."""
        for _ in range(20):
            said, says = os.pipe()
            hook = os.fork()
            if hook == 0:
                os.dup2(says, 2)
                os.closerange(3, max(said, says) + 1)
                os._exit(run_hook("epilog", lambda hook: FIT, places=places, env={}, limit_s=20.0))
            os.close(says)
            while os.read(said, 1 << 16):
                pass
            os.close(said)
            assert os.waitpid(hook, os.WNOHANG)[0] == hook

    def test_a_hook_that_is_killed_drains_no_node(self, places: Places) -> None:
        def killed(hook: Hook) -> int:
            os.kill(os.getpid(), signal.SIGKILL)
            return UNFIT

        assert run_hook("prolog", killed, places=places, env={}, limit_s=60) == FIT

    def test_a_hook_that_fails_itself_drains_no_node(self, places: Places) -> None:
        def broken(hook: Hook) -> int:
            raise ZeroDivisionError

        assert run_hook("prolog", broken, places=places, env={}, limit_s=5) == FIT
        assert "ZeroDivisionError" in Path(places.log).read_text()

    def test_settings_that_others_can_write_are_not_taken(self, places: Places, job: HookJob) -> None:
        settings(places, "drain: on\n")
        Path(places.settings_file).chmod(0o666)
        verdict(places, "critical")
        assert run("prolog", places, environment(job)) == FIT
        assert "expected a file that only root can write; the defaults apply" in Path(places.log).read_text()


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
        Ledger(places.ledger).begin(HookJob(job_id=78, uid=job.uid, gid=job.gid, cluster=job.cluster))
        assert [entry.job.job_id for entry in Ledger(places.ledger)] == [77, 78]


FREER = """
import sys, time
from slurm.hooks import prolog
from slurm.hooks.hook import Hook
from slurm.hooks.places import Places, Settings
remove = prolog.remove_job_dir
def slowly(*arguments):
    print("removing", flush=True)
    sys.stdin.readline()
    remove(*arguments)
prolog.remove_job_dir = slowly
places = Places(root=sys.argv[1], memory=sys.argv[2])
prolog.free_memory(Hook(places=places, settings=Settings(), env={}, deadline_s=time.monotonic() + 55))
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
        hook = Hook(places=places, settings=Settings(), env=environment(job), deadline_s=time.monotonic() + 20)
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

    def hang(_: str) -> None:
        os.write(begins, str(os.getpid()).encode())
        signal.pause()

    def wait(*_: object) -> tuple[list[int], list[int], list[int]]:
        (freezer / "cgroup.procs").write_text(os.read(begun, 10).decode())
        (freezer / "freezer.state").write_text("FROZEN")
        return [], [], []

    monkeypatch.setattr("shutil.rmtree", hang)
    monkeypatch.setattr("slurm.hooks.directories.select", SimpleNamespace(select=wait))
    make_user_dir(places.memory, job)
    make_job_dir(places.memory, job)
    ledger = Ledger(places.ledger)
    ledger.begin(job)
    for entry in ledger:
        ledger.end(entry, keep_s=0.0)
    free_memory(Hook(places=places, settings=Settings(), env={}, deadline_s=time.monotonic() + 60.0))
    assert (freezer / "cgroup.procs").read_text(), "it was to hang"
    ledger.begin(job, limit_s=0.0)
    os.close(begun)
    os.close(begins)


@as_root
class TestQuickPath:
    """Most jobs find a node that is fit and leave nothing behind: what their hooks import is time that they lose."""

    PYTHON = frozenset(("__future__", "_stat", "fcntl", "gc", "select", "stat"))
    OURS = frozenset(("__main__", "directories", "hook", "ledger", "log", "places", "prolog", "verdict"))
    ALLOWED: ClassVar[dict[str, frozenset[str]]] = {
        "prolog": OURS,
        "epilog": OURS | {"departures", "epilog", "incidents", "strays"},
    }

    def test_nothing_is_imported_that_only_other_jobs_need(self, tmp_path: Path, job: HookJob) -> None:
        places = Places(tmp_path)  # its memory is the machine's: the scripts know no other
        job.cluster = f"test-{os.getpid()}"
        verdict(places, "ok")
        imported: dict[str, set[str]] = {}
        for _ in range(2):  # the first one reads the verdict
            for name in self.ALLOWED:
                imported[name] = self.imported(name, places, job)
        assert "ready" in Path(places.log).read_text()
        for name, ours in self.ALLOWED.items():
            allowed = self.PYTHON | {"slurm", "slurm.errors", "slurm.hooks"} | {f"slurm.hooks.{own}" for own in ours}
            assert imported[name] <= allowed, name
        with suppress(OSError):
            memory_of(Places(), job).parent.rmdir()

    def imported(self, name: str, places: Places, job: HookJob) -> set[str]:
        """What the script's interpreter and its children import beyond what Python itself starts with."""
        script = scripts(root=places.root)[f"{name}.sh"].replace(" -ISc ", " -X importtime -ISc ")
        started = self.names([sys.executable, "-X", "importtime", "-ISc", ""], job)
        return self.names(["bash", "-c", script], job) - started

    @staticmethod
    def names(argv: list[str], job: HookJob) -> set[str]:
        """What a program that is run with -X importtime says it imports."""
        told = subprocess.run(argv, env=environment(job), stderr=subprocess.PIPE, text=True, check=True).stderr
        return {line.rpartition("|")[2].strip() for line in told.splitlines() if line.startswith("import time:")}


@pytest.mark.parametrize(("meanwhile", "left"), [((), {"n1"}), (("n3",), {"n3"})])
def test_nodes_that_drain_at_the_same_moment_take_it_back(
    tmp_path: Path, meanwhile: tuple[str, ...], left: set[str]
) -> None:
    nodes = TenNodes(meanwhile=meanwhile)
    draining = tmp_path / "lib/draining"
    assert (drain_node(Slurm(run=nodes), "n1", "x", "1", str(draining)) == "") == (not meanwhile)
    assert nodes.drained == left and not draining.exists()


class Killed(BaseException):
    """The hook's process ends here."""


class KilledAtSecondLook(TenNodes):
    """A cluster at which a hook that has drained its node never looks again."""

    def __call__(self, argv: Sequence[str], **more: object) -> Result:
        if argv[1] == "show" and "n1" in self.drained:
            raise Killed
        return super().__call__(argv, **more)


@pytest.mark.parametrize(
    ("why", "status", "meanwhile", "left"),
    [
        ("gpu_count: 7, expected 8", "critical", [], {"n1"}),
        ("gpu_count: 7, expected 8", "critical", ["n3"], {"n3"}),  # too many
        ("gpu_count: 7, expected 8", "ok", [], set()),  # a later check found nothing
        ("processes of job 7 hang in the kernel", "ok", [], {"n1"}),  # checks do not look for them
    ],
)
def test_a_drain_whose_hook_was_killed_is_looked_at_again_by_the_health_hook(
    places: Places, monkeypatch: pytest.MonkeyPatch, why: str, status: str, meanwhile: list[str], left: set[str]
) -> None:
    killed = KilledAtSecondLook(meanwhile=meanwhile)
    with pytest.raises(Killed):
        drain_node(Slurm(run=killed), "n1", why, "10%", places.draining)
    verdict(places, status)
    monkeypatch.setattr("sys.executable", "/bin/true")  # it looks, and leaves the verdict as it is
    end_s = time.monotonic() + 60
    hook = Hook(places=places, settings=Settings(drain="on"), env={"SLURMD_NODENAME": "n1"}, deadline_s=end_s)
    nodes = TenNodes(*killed.drained, reason=f"holdfast: {why}")
    for _ in range(2):
        health(hook, Slurm(run=nodes))
        assert nodes.drained == left and not Path(places.draining).exists()


def test_a_disk_that_takes_no_file_keeps_no_node_from_being_drained(tmp_path: Path) -> None:
    nodes = TenNodes()
    (tmp_path / "file").touch()
    assert drain_node(Slurm(run=nodes), "n1", "x", "1", str(tmp_path / "file/draining")) == ""
    assert nodes.drained == {"n1"}


@pytest.mark.parametrize("given", ["holdfast: lemon: x", "repair", "holdfast: y"])
def test_no_other_drain_is_taken_back_for_it(tmp_path: Path, given: str) -> None:
    nodes = TenNodes("n1", "n2", reason=given)
    draining = tmp_path / "draining"
    draining.write_text("holdfast: x")
    for _ in range(2):
        assert settle_drain(Slurm(run=nodes), "n1", "1", str(draining), lambda _: False) == ""
        assert nodes.drained == {"n1", "n2"} and not draining.exists()


def test_nobody_looks_in_the_place_of_a_hook_that_lives(tmp_path: Path) -> None:
    draining = tmp_path / "draining"

    class Meanwhile(TenNodes):
        settled = ""

        def __call__(self, argv: Sequence[str], **more: object) -> Result:
            done = super().__call__(argv, **more)
            if "State=DRAIN" in argv:
                Meanwhile.settled += settle_drain(Slurm(run=self), "n1", "1", str(draining), lambda _: False)
                assert draining.exists() and "n1" in self.drained
            return done

    assert drain_node(Slurm(run=Meanwhile()), "n1", "x", "1", str(draining)) == "" == Meanwhile.settled


@pytest.mark.parametrize("line", ["drian: on", "keep_memory_s: soon", "no colon"])
def test_a_setting_that_is_not_understood_is_named_with_its_line(places: Places, line: str) -> None:
    settings(places, f"# ours\n{line}\n")
    with pytest.raises(SettingsError, match=r"hooks.yaml:2: got .*expected a line 'key: value' with one of drain"):
        places.settings()


@pytest.mark.parametrize(
    "env",
    [
        {"SLURM_JOB_ID": "../../etc"},
        {"SLURM_JOB_ID": "7\n8"},
        {"SLURM_JOB_ID": "٧"},
        {"SLURM_JOB_ID": ""},
        {"SLURM_JOB_ID": "99999999999"},
        {"SLURM_JOB_UID": "-1"},
        {"SLURM_JOB_UID": "0x0"},
        {"SLURM_CLUSTER_NAME": "../../etc"},
        {"SLURM_CLUSTER_NAME": ""},
    ],
)
def test_what_names_no_job_is_refused(env: dict[str, str], job: HookJob) -> None:
    with pytest.raises(EnvironmentRefused, match=r"expected (a number|letters)"):
        HookJob.from_env(environment(job) | env)


def test_a_node_name_that_is_none_is_refused(places: Places) -> None:
    hook = Hook(places=places, settings=places.settings(), env={"SLURMD_NODENAME": "../n1"}, deadline_s=0)
    with pytest.raises(EnvironmentRefused, match="node name"):
        _ = hook.node


def test_the_kernels_log_is_read_without_waiting_for_more() -> None:
    times = [at_s for at_s, _ in kernel_messages()]
    assert times == sorted(times)


def test_the_scripts_are_the_same_before_slurm_is_installed_and_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurm.hooks.entry._SYSTEM_PATH", ("/usr/sbin", str(tmp_path)))
    monkeypatch.setenv("PATH", str(tmp_path))
    before = scripts()
    (tmp_path / "scontrol").touch(mode=0o755)
    assert scripts() == before


def test_the_scripts_are_one_command_into_python() -> None:
    texts = scripts(python=Path("/opt/holdfast/bin/python"), slurm_conf=Path("/etc/s l.conf"))
    assert list(texts) == [f"{name}.sh" for name in HOOKS.values()]
    text = texts["prolog.sh"]
    assert "export SLURM_CONF='/etc/s l.conf'" in text
    start, place, name, *otherwise = shlex.split(
        text.partition("exec /opt/holdfast/bin/python -ISc ")[2], comments=True
    )
    assert "from slurm.hooks.__main__ import main" in start and name == "prolog"
    assert Path(place, "slurm/hooks/__main__.py").exists() and otherwise == ["exit", "0"]


@pytest.mark.parametrize("name", ["prolog", "epilog"])
@pytest.mark.parametrize(
    ("what", "said"), [("python", "No such file or directory"), ("package", "ModuleNotFoundError")]
)
def test_an_installation_that_is_gone_drains_no_node(name: str, what: str, said: str, tmp_path: Path) -> None:
    script = scripts(python=tmp_path / "python" if what == "python" else None, root=str(tmp_path))[f"{name}.sh"]
    if what == "package":
        script = script.replace(f"' {ROOT} {name}", f"' {tmp_path} {name}")
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, said in done.stderr) == (0, True), done.stderr


def test_root_runs_nothing_that_others_can_change(tmp_path: Path) -> None:
    script = tmp_path / "prolog.sh"
    script.write_text("")
    script.chmod(0o777)
    with pytest.raises(EntryError, match="others could change"):
        check_trusted(script)


def _processes_of(uid: int) -> Iterator[str]:
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if path.stat().st_uid == uid:
                yield (path / "environ").read_text(errors="replace")
        except OSError:
            continue


def test_the_hooks_and_the_launcher_mean_the_same_directory(job: HookJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: job.uid)
    env = {"SLURM_JOB_PARTITION": "p", "SLURM_JOB_NODELIST": "n1", "SLURMD_NODENAME": "n1", "SLURM_NODEID": "0"}
    spec = SimpleNamespace(nodes=1, least_nodes=1, sizes=(1,), spares=0, slurm={})
    cluster = SlurmCluster(spec, Path("/nowhere"), env=environment(job, **env))  # type: ignore[arg-type]
    assert memory_dir(cluster.run_id) == Path(job_dir(Places().memory, job))
