"""Prolog: a node that is fit, its job's directories, what users put in their way."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hooks_kit import (
    OTHER,
    USER,
    TenNodes,
    as_root,
    as_user,
    environment,
    memory_of,
    run,
    settings,
    silent,
    verdict,
)

from launcher.clusters.slurm.cluster import SlurmCluster
from launcher.runner.memory import memory_dir
from slurm.command import CommandRunner
from slurm.hooks.directories import DirectoryError, job_dir, make_job_dir, make_user_dir
from slurm.hooks.entry import scripts
from slurm.hooks.hook import FIT, UNFIT, HookJob
from slurm.hooks.ledger import Ledger
from slurm.hooks.places import Places
from slurm.hooks.verdict import read_verdict


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

    @pytest.mark.parametrize("planted", ["link", "file", "directory of another user", "tree of another user"])
    def test_what_another_user_planted_is_removed_and_not_followed(
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
            (place / "deep").mkdir(parents=True) if "tree" in planted else place.mkdir()
            for path in (place, *place.iterdir()):
                os.chown(path, OTHER, OTHER)
        assert run("prolog", places, environment(job)) == FIT
        assert memory_of(places, job).is_dir() and place.lstat().st_uid == USER
        assert list(target.iterdir()) == [] and target.stat().st_uid == 0
        assert f"but of uid {OTHER}: moved to .holdfast-planted-" in Path(places.log).read_text()
        assert [path.name for path in Path(places.memory).iterdir()] == [place.name]

    def test_a_user_who_plants_all_the_time_keeps_no_job_from_its_directory(
        self, places: Places, job: HookJob, tmp_path: Path
    ) -> None:
        """Files, links, pipes and directories, as fast as a process can make them."""
        os.chmod(places.memory, 0o1777)
        place = memory_of(places, job).parent
        os.chmod(tmp_path, 0o755)
        kinds = f"echo x >{place}; ln -s / {place}; mkfifo {place}; mkdir {place}; mkdir {place}/in"
        planter = as_user(OTHER, f"echo ready; while :; do {{ {kinds}; }} 2>/dev/null; done", PATH=os.environ["PATH"])
        try:
            for _ in range(6):
                assert run("prolog", places, environment(job)) == FIT
                facts = place.lstat()
                if stat.S_ISDIR(facts.st_mode) and facts.st_uid == USER:
                    assert facts.st_mode & 0o7777 == 0o700
                shutil.rmtree(place, ignore_errors=True)
        finally:
            os.killpg(planter.pid, signal.SIGKILL)
            planter.wait()
        assert "hook itself failed" not in Path(places.log).read_text()
        assert len(list(Path(places.memory).glob(".holdfast-planted-*"))) <= 1

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
        self, places: Places, job: HookJob, slurm: CommandRunner, code: int, said: str
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


def test_the_hooks_and_the_launcher_mean_the_same_directory(job: HookJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: job.uid)
    env = {"SLURM_JOB_PARTITION": "p", "SLURM_JOB_NODELIST": "n1", "SLURMD_NODENAME": "n1", "SLURM_NODEID": "0"}
    spec = SimpleNamespace(name="job", nodes=1, least_nodes=1, most_boosters=0, sizes=(1,), spares=0, slurm={})
    cluster = SlurmCluster(spec, Path("/nowhere"), env=environment(job, **env))  # type: ignore[arg-type]
    assert memory_dir(cluster.run_id) == Path(job_dir(Places().memory, job))
