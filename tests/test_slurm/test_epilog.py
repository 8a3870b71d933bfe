"""Epilog: strays, memory kept and freed, and what the health hook does for jobs that left without one."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hooks_kit import (
    NEXT,
    OTHER,
    SLEEP,
    USER,
    TenNodes,
    as_root,
    as_user,
    environment,
    environments_of,
    memory_of,
    run,
    settings,
)

from slurm.client import Slurm
from slurm.command import Result
from slurm.hooks import departures
from slurm.hooks.departures import clear_forgotten
from slurm.hooks.hook import FIT, UNFIT, Hook, HookJob, run_hook
from slurm.hooks.incidents import kernel_messages, record_incidents
from slurm.hooks.ledger import Ledger
from slurm.hooks.places import Places
from slurm.hooks.strays import _processes_of as processes_of
from slurm.hooks.strays import kill_strays

ENDED = 7  # of a hook's body that has come to its end


@as_root
class TestEpilog:
    def test_what_the_job_left_running_ends_and_nothing_else(self, places: Places, job: HookJob) -> None:
        number = str(job.job_id)
        stray = as_user(USER, SLEEP, SLURM_JOB_ID=number)
        other_user = as_user(OTHER, SLEEP, SLURM_JOB_ID=number)
        other_job = as_user(USER, SLEEP, SLURM_JOB_ID=str(NEXT.job_id))
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
            assert not [entry for entry in environments_of(USER) if f"SLURM_JOB_ID={job.job_id}" in entry]
        finally:
            first.wait(10)  # it ended with its first fork
            first.stdout.close()

    def test_a_process_that_begins_while_they_are_looked_for_ends_too(
        self, job: HookJob, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        strays: list[subprocess.Popen[bytes]] = []

        def scan(uid: int) -> list[tuple[int, int]]:
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
        run("prolog", places, environment(NEXT))
        assert (memory_of(places, job) / "shard").exists()

        settings(places, "keep_memory_s: 0\n")
        run("epilog", places, environment(job))
        run("prolog", places, environment(NEXT))
        assert not memory_of(places, job).parent.exists()
        assert memory_of(places, NEXT).is_dir()

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
        run("prolog", places, environment(NEXT))
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
        reason = f"holdfast: processes of job {job.job_id} hang in the kernel, reboot: [99]"
        ours = f"NodeName=n1 State=DRAIN Reason={reason}"
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
        assert (row["node"], row["job"], row["uid"]) == ("n1", job.job_id, USER)
        assert "Xid (PCI:0000:4f:00): 79" in row["what"]

    @pytest.mark.parametrize(
        "said",
        [
            "NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus.",
            "NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x62:0xffff:1863)",
            "NVRM: GPU0 nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED]",
        ],
    )
    def test_a_gpu_lost_without_an_xid_is_kept_against_the_node(self, tmp_path: Path, job: HookJob, said: str) -> None:
        kmsg = tmp_path / "kmsg"
        kmsg.write_text(f"4,1,5000000,-;{said}\n4,2,6000000,-;NVRM: loading NVIDIA UNIX Kernel Module\n")
        assert record_incidents(str(tmp_path / "incidents"), "n1", job, since_s=2.0, kmsg=str(kmsg)) == [said]


@as_root
class TestDepartureWithoutAnEpilog:
    """Slurm calls none of ours after a script of the site's that failed: the health hook looks."""

    def look(self, places: Places, job: HookJob, said: Callable[[], str]) -> float | None:
        """Until when the ledger has the job's memory stay, after a look that asks Slurm for the job."""

        def scontrol(argv: Sequence[str], **_: object) -> Result:
            assert argv == ["scontrol", "show", "job", "--oneliner", str(job.job_id)]
            return Result(argv=tuple(argv), returncode=0, stdout=said(), stderr="", seconds=0.0)

        def body(hook: Hook) -> int:
            clear_forgotten(hook, Slurm(run=scontrol))
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
        assert f"whether job {job.job_id} is here is not known" in Path(places.log).read_text()

    def test_a_job_that_comes_back_while_it_is_looked_for_keeps_its_memory(self, places: Places, job: HookJob) -> None:
        run("prolog", places, environment(job))

        def comes_back() -> str:
            run("prolog", places, environment(job))
            return record(job, "PENDING", "(null)")

        assert self.look(places, job, comes_back) is None


def record(job: HookJob, state: str, nodes: str) -> str:
    return f"JobId={job.job_id} UserId=nobody({USER}) JobState={state} Partition=train NodeList={nodes} NumNodes=1\n"


@pytest.mark.timeout(30)  # a read that waits for the kernel's next message ends here
def test_the_kernels_log_is_read_without_waiting_for_more() -> None:
    messages = kernel_messages()  # not in order of time: each CPU takes the time of its messages for itself
    assert all(0 <= at_s <= time.clock_gettime(time.CLOCK_BOOTTIME) for at_s, _ in messages)
