"""The submitit executor: what reaches sbatch, what a job on the local cluster does, and how states are learnt."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from submitit import DebugExecutor
from submitit.core.utils import FailedJobError
from waiting import until

from ckpt.tiers.claim import Claim
from ckpt.tiers.posix import SharedTier
from launcher import Executor, Torchrun
from launcher.cli import main as cli
from launcher.clusters.slurm import status as slurm_status
from launcher.clusters.slurm.checks import check_seen_by_nodes
from launcher.clusters.slurm.submission import SlurmWatcher, SupervisedSlurmExecutor, cancel
from launcher.core.outcomes import JobOutcome
from launcher.env.containers import of_the_steps
from launcher.errors import LauncherError, UsageError
from launcher.job.jobfile import JobSpec
from launcher.job.registry import find_job, known_jobs
from launcher.job.stop_request import StopRequest
from launcher.job.supervisor_process import Process
from launcher.scheduler.interface import RunLiveness
from launcher.submission import in_allocation
from launcher.submission.batch import main
from launcher.submission.request import write_request

PENDING = Path(__file__).parents[1] / "test_slurm" / "recorded" / "job_pending.txt"
PARTITIONS = "PartitionName=train Default=YES Nodes=n[1-16] State=UP"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's folder. Jobs that a failed test leaves running are ended."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import os; print('rank', os.environ['RANK'])\n")
    yield tmp_path
    for job in known_jobs():
        process = Process.read(job.folder)
        if process is not None:
            process.interrupt()


@pytest.fixture
def command(home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Puts a program with that answer on PATH, in front of everything."""
    folder = home / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def put(name: str, answer: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{answer}\n")
        (folder / name).chmod(0o755)

    put("scontrol", f"echo '{PARTITIONS}'")
    put("sinfo", "echo 'train*|(null)'")
    put("squeue", "echo '42|RUNNING|n[1-9]'")
    put("sbatch", f'n=$(ls {home}/asked | wc -l); cp "$1" {home}/asked/$n; echo Submitted batch job $((42 + n))')
    (home / "asked").mkdir()
    return put


def asked(home: Path, number: int = 0) -> set[str]:
    """The #SBATCH options of a submission."""
    lines = (home / "asked" / str(number)).read_text().splitlines()
    return {line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH --")}


LIMITED = PENDING.read_text().replace("Account=(null) QOS=(null)", "Account=team QOS=small")


def test_a_limit_for_which_the_job_waits_for_ever_is_told_at_submission(
    home: Path, command: Callable[[str, str], None], caplog: pytest.LogCaptureFixture
) -> None:
    (home / "job").write_text(LIMITED.replace("JobId=8 ", "JobId=42 "))
    config = "AccountingStorageEnforce = associations,limits"
    command(
        "scontrol", f'case "$*" in *config*) echo "{config}";; *job*) cat {home}/job;; *) echo "{PARTITIONS}";; esac'
    )
    command("sacctmgr", 'case "$*" in *qos*) echo "small|node=2||||||";; *) echo "||root||||";; esac')
    Executor(cluster="slurm").submit(Torchrun("train.py"))
    told = "job 42 waits for ever: QOS small has GrpTRES node=2, the job asks for node=4"
    assert [record.message for record in caplog.records if told in record.message]
    command("sacctmgr", "exit 1")
    caplog.set_level(logging.INFO)
    assert Executor(cluster="slurm").submit(Torchrun("train.py")).job_id == "43", "the job is in the queue all the same"
    caplog.clear()
    command("scontrol", f'case "$*" in *config*) echo;; *job*) exit 9;; *) echo "{PARTITIONS}";; esac')
    Executor(cluster="slurm").submit(Torchrun("train.py"))
    assert "limits of its QOS" not in caplog.text, "this site has none"


def test_parameters_reach_sbatch_as_a_submitit_user_knows_them(home: Path, command: Any) -> None:
    executor = Executor(cluster="slurm")
    executor.update_parameters(nodes=8, spares=1, gpus_per_node=8, timeout_min=1440, name="gpt", mem_gb=64)
    executor.update_parameters(slurm_partition="train", slurm_additional_parameters={"reservation": "maint"})
    job = executor.submit(Torchrun("train.py", "--lr", "3e-4", slurm={"account": "team"}))
    assert job.job_id == "42" and job.num_tasks == 1 and job.paths.folder == home / "runs" / "42"
    assert asked(home) >= {
        "nodes=9",
        "ntasks-per-node=1",
        "gpus-per-node=8",
        "time=1440",
        "job-name=gpt",
        "mem=64GB",
        "partition=train",
        "reservation=maint",
        "account=team",
        "no-kill",
        "requeue",
        "signal=B:USR2@90",
        "open-mode=append",
    }


def test_sbatch_options_that_a_supervised_job_has_other_words_for_are_refused(home: Path, command: Any) -> None:
    executor = Executor(cluster="slurm")
    executor.update_parameters(nodes=2, slurm_additional_parameters={"gpus": 16})
    with pytest.raises(UsageError, match=r"additional_parameters: gpus: .* set `gpus_per_node: 8` in the job file"):
        executor.submit(Torchrun("train.py"))
    assert not list((home / "asked").iterdir())


@pytest.mark.parametrize("options", [{}, {"slurm": {"account": "team"}}])
def test_gpus_by_submitits_gres_get_a_worker_each(home: Path, command: Any, options: dict[str, Any]) -> None:
    executor = Executor(cluster="slurm")
    executor.update_parameters(slurm_gres="gpu:a100:8")
    job = executor.submit(Torchrun("train.py", **options))
    assert job.submission().function.workers_per_node == 8
    assert "gres=gpu:a100:8" in asked(home) and not [line for line in asked(home) if line.startswith("gpus")]


def test_what_the_batch_host_gets_is_the_job_alone(home: Path, command: Any) -> None:
    executor = Executor(cluster="slurm")
    executor.update_parameters(nodes=2, workers_per_node=3)
    job = executor.submit(Torchrun("train.py", "--lr", "3e-4", env={"A": "b"}))
    spec = job.submission().function
    assert (spec.script, spec.args, spec.env) == (home / "train.py", ("--lr", "3e-4"), {"A": "b"})
    assert (spec.nodes, spec.workers_per_node) == (2, 3)


def test_sbatch_variables_of_the_environment_do_not_override_the_job(
    home: Path, command: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Modules of sites set them, and sbatch takes them before the lines of its script."""
    command("sbatch", f"env | grep ^SBATCH_ > {home}/env; echo Submitted batch job 42")
    lost = ("SBATCH_TIMELIMIT", "SBATCH_NO_REQUEUE", "SBATCH_SIGNAL", "SBATCH_ARRAY_INX", "SBATCH_GRES", "SBATCH_GPUS")
    for name in (*lost, "SBATCH_PARTITION", "SBATCH_ACCOUNT"):
        monkeypatch.setenv(name, "3")
    Executor(cluster="slurm").submit(Torchrun("train.py", time="1-0", slurm={"partition": "train"}))
    assert (home / "env").read_text() == "SBATCH_ACCOUNT=3\n"
    assert "not passed to sbatch, the job's own options hold: SBATCH_ARRAY_INX SBATCH_GPUS" in caplog.text
    (home / "job.yaml").write_text("script: train.py\ntime: 1-0\n")
    assert cli(["submit", "--dry-run", "job.yaml"]) == 0


def test_a_namespace_that_a_running_job_has_is_refused_before_the_queue(
    home: Path, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = {"namespace": "gpt", "shared": {"path": str(home / "ckpt")}}
    tier = SharedTier(home / "ckpt", "gpt")
    tier.prepare()
    runs = lambda run_id, env: RunLiveness(has_ended=False, is_running=True, words=f"{run_id} is RUNNING")  # noqa: E731
    monkeypatch.setattr("launcher.scheduler.run_liveness.liveness", runs)

    def claimed(released: bool) -> None:
        tier.write_claim(
            Claim(
                run_id="slurm-c-4", attempt=0, nonce="n", user="ann", host="n1", job="4", since_s=1.0, released=released
            )
        )

    def submitted(**slurm: str) -> Any:
        return Executor(cluster="slurm").submit(Torchrun("train.py", checkpoint=checkpoint, slurm=slurm))

    claimed(released=False)
    with pytest.raises(UsageError, match=r"namespace: gpt is in use in the shared tier by .*ann.*\(slurm-c-4 is RUNN"):
        submitted()
    assert not list((home / "asked").iterdir())
    assert submitted(dependency="afterany:4")
    claimed(released=True)
    assert submitted()
    claimed(released=False)
    over = RunLiveness(has_ended=True, is_running=False, words="")
    monkeypatch.setattr("launcher.scheduler.run_liveness.liveness", lambda run_id, env: over)
    assert submitted()


def test_a_folder_in_this_hosts_memory_is_refused_for_a_job_on_other_nodes(home: Path) -> None:
    one, two = (JobSpec.from_mapping({"script": "train.py", "nodes": nodes}, home) for nodes in (1, 2))
    with pytest.raises(UsageError, match=r"is in this host.s memory \(tmpfs\), expected a folder on a file system"):
        check_seen_by_nodes(Path("/dev/shm/holdfast-no-such/runs"), two)
    check_seen_by_nodes(Path("/dev/shm/holdfast-no-such/runs"), one)
    check_seen_by_nodes(home, two)


def test_a_module_and_a_command_are_programs_as_torchrun_has_them() -> None:
    assert Torchrun("pkg.train", "--lr", module=True).mapping("x") == {"module": "pkg.train", "args": ["--lr", "x"]}
    job = Torchrun("./run.sh", no_python=True, name="a")
    assert job.mapping() == {"name": "a", "command": ["./run.sh"], "args": []}
    with pytest.raises(UsageError, match="got module and no_python"):
        Torchrun("x", module=True, no_python=True)


def test_a_partition_of_the_environment_is_the_jobs_where_it_names_none(
    home: Path, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    command("scontrol", "echo 'PartitionName=small Default=NO Nodes=n1 State=UP'")
    monkeypatch.setenv("SBATCH_PARTITION", "small")
    with pytest.raises(UsageError, match="all that partition small has"):
        Executor(cluster="slurm").submit(Torchrun("train.py", nodes=4))


def test_a_job_that_leaves_its_partitions_gpus_alone_is_remarked_on(
    home: Path, command: Any, caplog: pytest.LogCaptureFixture
) -> None:
    command("sinfo", "echo 'train*|gpu:a100:8(S:0-1)'")
    executor = Executor(cluster="slurm")
    executor.submit(Torchrun("train.py", gpus_per_node=8))
    assert not caplog.text
    executor.submit(Torchrun("train.py"))
    assert "the partition has GPUs, none for the job: it trains on the CPU" in caplog.text


def test_the_jobs_folder_is_for_its_user_only_and_holds_its_script(home: Path, command: Any) -> None:
    job = Executor(cluster="slurm").submit(Torchrun("train.py"))
    assert job.paths.folder.stat().st_mode & 0o777 == 0o700
    assert "launcher.submission.batch slurm" in job.paths.submission_file.read_text()
    assert [path.name for path in (home / "runs").iterdir()] == ["42"]


def test_the_supervisor_takes_the_batch_shells_place(home: Path, command: Any) -> None:
    Executor(cluster="slurm").submit(Torchrun("train.py"))
    last = (home / "asked" / "0").read_text().rstrip().splitlines()[-1]
    assert last.startswith(f"exec {sys.executable} ")


@pytest.mark.parametrize(
    ("restarts", "excluded", "asked_of_slurm"),
    [
        ("0", "(null)", []),
        ("1", "(null)", ["requeue 7", "update JobId=7 ExcNodeList=n1"]),
        ("1", "n[4-5]", ["requeue 7", "update JobId=7 ExcNodeList=n[4-5],n1"]),
    ],
)
def test_a_restart_on_a_host_that_cannot_load_the_launcher_goes_to_another_host(
    tmp_path: Path, restarts: str, excluded: str, asked_of_slurm: list[str]
) -> None:
    scontrol = tmp_path / "scontrol"
    shown = f'echo "JobId=7 ReqNodeList=(null) ExcNodeList={excluded} NumNodes=2"'
    scontrol.write_text(f'#!/bin/sh\n[ "$1" = show ] && {shown} || echo "$*" >> {tmp_path}/asked\n')
    scontrol.chmod(0o755)
    script = SupervisedSlurmExecutor(tmp_path / "%j", python="false").program
    job = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1"}
    done = subprocess.run(["bash", "-c", script], check=False, env=job | {"SLURM_RESTART_COUNT": restarts})
    asked = tmp_path / "asked"
    assert (asked.read_text().splitlines() if asked.exists() else []) == asked_of_slurm
    assert bool(done.returncode) == (restarts == "0"), "a first start fails with the launcher's own error"


def test_a_folder_without_the_job_id_gets_one(home: Path, command: Any) -> None:
    assert Executor("kept", cluster="slurm").submit(Torchrun("train.py")).paths.folder == home / "kept" / "42"


def test_without_a_time_limit_the_partition_decides(home: Path, command: Any) -> None:
    Executor(cluster="slurm").submit(Torchrun("train.py"))
    assert not [option for option in asked(home) if option.startswith("time=")]


def test_a_submission_leaves_the_executors_parameters_as_they_were(home: Path, command: Any) -> None:
    executor = Executor(cluster="slurm")
    executor.update_parameters(nodes=2, slurm_partition="train")
    executor.submit(Torchrun("train.py", name="first", slurm={"account": "team"}))
    executor.submit(Torchrun("train.py", name="second"))
    assert {"job-name=second", "nodes=2", "partition=train"} <= asked(home, 1)
    assert "account=team" not in asked(home, 1)


def test_jobs_of_a_batch_that_ask_slurm_for_the_same_become_one_array(home: Path, command: Any) -> None:
    executor = Executor(cluster="slurm")
    executor.update_parameters(nodes=2, slurm_array_parallelism=2)
    with executor.batch():
        jobs = [executor.submit(Torchrun("train.py", "--seed", str(seed))) for seed in range(3)]
        other = executor.submit(Torchrun("train.py", "--seed", "3", nodes=1))
    assert [job.job_id for job in (*jobs, other)] == ["42_0", "42_1", "42_2", "43"]
    assert [job.submission().function.args[1] for job in (*jobs, other)] == ["0", "1", "2", "3"]
    assert {"array=0-2%2", "nodes=2", f"output={home}/runs/%A_%a/%A_%a_0_log.out"} <= asked(home)
    assert not [option for option in asked(home, 1) if option.startswith("array")]
    assert sorted(path.name for path in (home / "runs").iterdir()) == ["42_0", "42_1", "42_2", "43"]
    assert {path.stat().st_mode & 0o777 for path in (home / "runs").iterdir()} == {0o700}
    assert {job.job_id for job in known_jobs()} == {"42_0", "42_1", "42_2", "43"}


def test_pyxis_options_go_to_the_steps_and_all_others_to_sbatch(home: Path, command: Any) -> None:
    slurm = {
        "container_image": "nvcr.io#torch:25.1",
        "container_mounts": "/data:/data",
        "gres": "lustre:1",
        "x11": True,
    }
    job = Executor(cluster="slurm").submit(Torchrun("train.py", slurm=slurm))
    assert asked(home) >= {"gres=lustre:1", "x11"}
    assert "container" not in job.paths.submission_file.read_text()
    kept = job.submission().function
    assert of_the_steps(kept.slurm, Path("/runs/42")) == [
        "--container-image=nvcr.io#torch:25.1",
        "--container-mounts=/data:/data,/runs/42:/runs/42",
    ]


def test_map_array_appends_to_the_scripts_arguments(home: Path, command: Any) -> None:
    jobs = Executor(cluster="slurm").map_array(Torchrun("train.py", "--lr"), ["0.1", "0.2"])
    assert [job.submission().function.args for job in jobs] == [("--lr", "0.1"), ("--lr", "0.2")]


def test_a_batch_with_one_bad_job_submits_none(home: Path, command: Any) -> None:
    executor = Executor(cluster="slurm")
    with pytest.raises(UsageError, match=r"nope\.py"), executor.batch():
        executor.submit(Torchrun("train.py"))
        executor.submit(Torchrun("nope.py"))
    assert not list((home / "asked").iterdir())


def test_a_job_that_was_submitted_is_known(home: Path, command: Any) -> None:
    Executor(cluster="slurm").submit(Torchrun("train.py", name="gpt"))
    (job,) = known_jobs()
    assert (job.job_id, job.name, job.cluster, job.nodes) == ("42", "gpt", "slurm", 1)
    assert find_job("42") == find_job("gpt") == find_job("runs/42") == job


def test_jobs_that_wait_are_known_by_their_folders_to_those_who_did_not_submit_them(
    home: Path, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = Executor(cluster="slurm")
    executor.map_array(Torchrun("train.py", "--lr"), ["0.1", "0.2"])
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "another"))
    for folder in (home / "runs").iterdir():
        job = find_job(str(folder))
        assert (job.job_id, job.cluster, job.folder) == (folder.name, "slurm", folder)
    with pytest.raises(UsageError, match="no job"):
        find_job(str(home / "runs"))


def test_an_elastic_job_starts_on_fewer_nodes_where_slurm_has_no_more(home: Path, command: Any) -> None:
    executor = Executor(cluster="slurm")
    executor.update_parameters(nodes=16, spares=2)  # of the 16 that there are
    executor.submit(Torchrun("train.py", elastic={"min_nodes": 12, "step": 2}))
    assert "nodes=12-18" in asked(home)
    assert not any(option.startswith("ntasks") for option in asked(home))  # Slurm would take 12 of any number


PREEMPTING = """
case "$*" in
*config*) printf 'AccountingStorageType = accounting_storage/none\\nPreemptMode = REQUEUE\\n'
    echo 'PreemptType = preempt/partition_prio' ;;
*) echo 'PartitionName=train Default=YES Nodes=n[1-16] PriorityTier=5 PreemptMode=OFF State=UP'
    echo 'PartitionName=boost Default=NO Nodes=n[1-3] PriorityTier=1 PreemptMode=REQUEUE State=UP'
    echo 'PartitionName=urgent Default=NO Nodes=n[1-16] PriorityTier=9 PreemptMode=REQUEUE State=UP' ;;
esac
"""


@pytest.mark.parametrize(
    ("booster", "largest", "message"),
    [
        ({"partition": "boost"}, 4, ""),
        ({"partition": "boos"}, 4, r"elastic\.booster\.partition: got 'boos', and .* did you mean boost\?"),
        (
            {"partition": "train"},
            4,
            r"elastic\.booster\.partition: got 'train', whose PreemptMode is OFF; exp",
        ),
        (
            {"partition": "urgent"},
            4,
            r"'urgent' of PriorityTier 9, which outranks the job's own partition, train",
        ),
        ({"partition": "boost"}, 16, r"elastic\.booster\.partition: has 3 nodes, expected at least 14"),
        (None, 4, r"elastic\.booster: missing, expected a preemptible partition or QOS"),
        ({"time": "1:00:00"}, 4, r"elastic\.booster: missing, expected a preemptible partition or QOS"),
    ],
)
def test_boosters_that_slurm_cannot_take_back_are_refused(
    booster: Any, largest: int, message: str, home: Path, command: Any
) -> None:
    command("scontrol", PREEMPTING)
    executor = Executor(cluster="slurm")
    executor.update_parameters(nodes=2)
    job = Torchrun("train.py", elastic={"sizes": [2, largest], "booster": booster})
    if not message:
        assert executor.submit(job).job_id == "42"
        return
    with pytest.raises(UsageError, match=message) as caught:
        executor.submit(job)
    assert "\n" not in str(caught.value) and not list((home / "asked").iterdir())


def test_a_job_that_grows_nowhere_but_here_needs_no_booster(home: Path) -> None:
    job = Executor(cluster="local").submit(Torchrun("train.py", elastic={"min_nodes": 1, "max_nodes": 2}))
    assert job.result() is not None


def test_where_slurm_cannot_be_asked_sbatch_judges(home: Path, command: Any) -> None:
    command("scontrol", "exit 1")
    executor = Executor(cluster="slurm")
    executor.update_parameters(nodes=1000)
    assert executor.submit(Torchrun("train.py")).job_id == "42"


@pytest.mark.parametrize(
    ("submission", "message"),
    [
        (len, "expected Torchrun"),
        (Torchrun("nope.py"), "no file"),
        (Torchrun("train.py", chekpoint={}), "unknown key, did you mean checkpoint"),
        (Torchrun("train.py", elastic={"max_nodes": 4}), "elastic.min_nodes: missing"),
    ],
)
def test_what_is_no_job_is_refused(submission: Any, message: str, home: Path, command: Any) -> None:
    with pytest.raises(UsageError, match=message):
        Executor(cluster="slurm").submit(submission)
    assert not list((home / "asked").iterdir())


def test_tasks_per_node_is_refused_by_its_right_name() -> None:
    with pytest.raises(UsageError, match=r"tasks_per_node: .*; set workers_per_node"):
        Executor(cluster="local").update_parameters(tasks_per_node=8)


def test_submitits_own_clusters_are_refused() -> None:
    with pytest.raises(UsageError, match="cluster: got 'debug', expected one of slurm, local"):
        Executor(cluster=DebugExecutor.name())


def test_states_come_from_squeue_and_then_from_sacct(home: Path, command: Any) -> None:
    watcher = SlurmWatcher()
    command("squeue", "echo '42|RUNNING|n[1-2]'; echo '43|COMPLETED|n3'")
    command("sacct", "echo '44|CANCELLED by 7|n4'")
    for job_id in ("42", "43", "44", "45"):
        watcher.register_job(job_id)
    states = {job_id: watcher.get_state(job_id) for job_id in ("42", "43", "44", "45")}
    assert states == {"42": "RUNNING", "43": "COMPLETED", "44": "CANCELLED", "45": "ENDED"}
    assert [watcher.is_done(job_id, "cache") for job_id in states] == [False, True, True, True]


def test_without_accounting_a_forgotten_job_has_ended(home: Path, command: Any) -> None:
    command("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    command("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    assert SlurmWatcher().is_done("42", mode="force")


def test_a_controller_that_does_not_answer_ends_no_job(home: Path, command: Any) -> None:
    command("squeue", "echo 'Unable to contact slurm controller' >&2; exit 1")
    assert not SlurmWatcher().is_done("42", mode="force")


def test_a_requeued_job_is_not_done(home: Path, command: Any) -> None:
    for state in ("PENDING", "REQUEUED", "COMPLETING", "REQUEUE_HOLD", "CONFIGURING"):
        command("squeue", f"echo '42|{state}|'")
        assert not SlurmWatcher().is_done("42", mode="force")


@pytest.mark.parametrize(
    ("name", "exit_code", "said"),
    [("stopped", 0, ""), ("too_few_nodes", 12, "holdfast: job gpt: too_few_nodes at step 7: no spare left\n")],
)
def test_the_batch_script_ends_as_its_job_does(
    monkeypatch: pytest.MonkeyPatch,
    home: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    exit_code: int,
    said: str,
) -> None:
    import launcher.supervisor as supervisor

    ended = supervisor.Outcome(name=JobOutcome(name), step=7, reason="no spare left", seconds=1.0)
    monkeypatch.setattr(supervisor, "supervise", lambda *_: ended)
    (home / "1").mkdir()
    write_request(home / "1", JobSpec(name="gpt", script=home / "train.py").to_json(), "local")
    assert main("local", str(home / "1")) == exit_code
    assert capsys.readouterr().err == said


def test_a_job_that_was_stopped_has_no_result_yet(home: Path, command: Any) -> None:
    command("squeue", "echo '42|PENDING|'")
    job = Executor(cluster="slurm").submit(Torchrun("train.py"))
    result = {"name": "stopped", "step": 7, "exit_code": 0, "reason": "", "seconds": 1.0, "run_id": "r"}
    (job.paths.folder / "result.json").write_text(json.dumps(result))
    assert not job.done(force_check=True)
    (job.paths.folder / "result.json").write_text(json.dumps(result | {"name": "done"}))
    assert job.done()


# On the local cluster: real supervisors, runners and workers.


def test_a_local_job_gives_its_outcome_and_its_output(home: Path) -> None:
    executor = Executor(cluster="local")
    executor.update_parameters(workers_per_node=2, timeout_min=5)
    job = executor.submit(Torchrun("train.py"))
    assert job.state == "RUNNING"
    assert job.result()["name"] == "done"
    assert job.state == "FINISHED" and job.stdout() == "rank 0\n"
    assert sorted(job.logs(rank=None).splitlines()) == ["[rank 0] rank 0", "[rank 1] rank 1"]
    assert "job_end" in job.logs(supervisor=True)
    assert (job.status().state, job.status().nodes) == ("done", ("node0",))
    assert job.stop() == f"job {job.job_id} has ended already (done)"
    with pytest.raises(LauncherError, match="submit it again with -N 2"):
        job.scale(2)
    assert (job.paths.folder / "log" / "attempt-0" / "rank-1.log").read_text() == "rank 1\n"
    assert json.loads((job.paths.folder / "job.json").read_text())["workers_per_node"] == 2


def test_a_local_job_that_fails_raises_its_cause(home: Path) -> None:
    (home / "train.py").write_text("raise KeyError('typo')\n")
    job = Executor(cluster="local").submit(Torchrun("train.py", name="gpt"))
    with pytest.raises(FailedJobError, match=r"job gpt: user_error: .*KeyError: 'typo'"):
        job.result()


def test_a_local_job_outlives_its_submitter_and_is_cancelled_from_elsewhere(home: Path) -> None:
    (home / "train.py").write_text("import time\ntime.sleep(600)\n")
    (home / "job.yaml").write_text("script: train.py\n")
    holdfast = [sys.executable, "-m", "launcher"]
    submit = [*holdfast, "submit", "job.yaml", "--cluster", "local", "--json"]
    facts = json.loads(subprocess.run(submit, check=True, capture_output=True, text=True).stdout)
    folder = Path(facts["folder"])
    process = Process.read(folder)
    assert process is not None and process.alive() and os.getsid(process.pid) == process.pid
    until(lambda: "workers_started" in _text(folder / "events.jsonl"))
    subprocess.run([*holdfast, "cancel", facts["job_id"]], check=True)
    assert not process.alive()
    assert json.loads((folder / "result.json").read_text())["name"] == "cancelled"
    status = subprocess.run([*holdfast, "status", facts["job_id"], "--json"], check=True, capture_output=True)
    assert json.loads(status.stdout)["state"] == "cancelled"


def test_a_job_that_is_being_preempted_is_asked_to_end_before_it_is_cancelled(home: Path, command: Any) -> None:
    (home / "state").write_text("42|SIGNALING|n1")
    command("squeue", f"cat {home}/state")
    command("scancel", f'echo "$@" >> {home}/cancelled; echo "42|COMPLETED|n1" > {home}/state')
    cancel("42")
    assert (home / "cancelled").read_text() == "--batch --signal=INT 42\n"


@pytest.mark.parametrize("is_noted", [True, False], ids=["in the registry", "by its folder"])
def test_no_order_reaches_the_job_of_another_cluster_that_has_the_same_id(
    is_noted: bool, home: Path, command: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm_status._cluster_name.cache_clear()
    command("scontrol", f'[ "$2" = config ] && echo "ClusterName = a" || echo "{PARTITIONS}"')
    Executor(cluster="slurm").submit(Torchrun("train.py", checkpoint={}))
    folder = home / "runs" / "42"
    if not is_noted:
        monkeypatch.setenv("XDG_STATE_HOME", str(home / "another"))
        start = {"time": 1.0, "event": "job_start", "run_id": "slurm-a-42", "cluster": "slurm"}
        (folder / "events.jsonl").write_text(json.dumps(start) + "\n")
    command("scancel", f'echo "$@" >> {home}/cancelled')
    command("squeue", "echo '42|PENDING|'")
    of_job_42 = f"sed s/JobId=8/JobId=42/ {PENDING}"
    command("scontrol", f'[ "$2" = config ] && echo "ClusterName = b" || {of_job_42}')
    elsewhere = "job 42 belongs to cluster a, this is cluster b; run this on a login node of a"
    for verb in ("cancel", "stop"):
        assert cli([verb, str(folder)]) == 2
        assert capsys.readouterr().err == f"holdfast: error: {elsewhere}\n"
    assert cli(["status", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["reason"] == elsewhere
    assert not (home / "cancelled").exists() and StopRequest.read(folder) is None

    slurm_status._cluster_name.cache_clear()
    command("scontrol", f'[ "$2" = config ] && echo "ClusterName = a" || {of_job_42}')
    assert cli(["cancel", str(folder)]) == 0
    assert (home / "cancelled").read_text() == "42\n"


def test_run_follows_a_job_to_its_end_and_exits_as_it_did(home: Path) -> None:
    (home / "job.yaml").write_text("script: train.py\nnodes: 1\n")
    run = [sys.executable, "-m", "launcher", "run", "job.yaml"]
    done = subprocess.run(run, check=True, capture_output=True, text=True)
    assert "attempt 0 (start) on node0" in done.stdout and done.stdout.splitlines()[-1].startswith("done")
    (home / "train.py").write_text("raise SystemExit('wrong data')\n")
    failed = subprocess.run(run, check=False, capture_output=True, text=True)
    assert failed.returncode == 10 and "wrong data" in failed.stdout, failed.stdout
    assert [line for line in failed.stdout.splitlines() if line.startswith("user_error")], failed.stdout
    assert "more: holdfast why" in failed.stderr and "Traceback" not in failed.stderr


@pytest.mark.parametrize("env", [{}, {"FORCE_COLOR": "1"}], ids=["lines", "live"])
@pytest.mark.parametrize("until_line, ctrl_c", [("job ", False), ("workers started", True)])
def test_run_cancels_its_job_when_nobody_reads_its_output_any_more(
    home: Path, env: dict[str, str], until_line: str, ctrl_c: bool
) -> None:
    (home / "train.py").write_text("import time\ntime.sleep(600)\n")
    (home / "job.yaml").write_text("script: train.py\n")
    command = [sys.executable, "-m", "launcher", "run", "job.yaml"]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    run = subprocess.Popen(command, env={**os.environ, **env}, **pipes)
    assert run.stdout is not None and run.stderr is not None
    assert any(until_line in line for line in iter(run.stdout.readline, ""))
    run.stdout.close()
    if ctrl_c:
        run.send_signal(signal.SIGINT)
    said = run.stderr.read()
    assert (run.wait(), _still_run(home)) == (1, []), said
    assert "cancelling job" in said and "Traceback" not in said


def test_run_cancels_its_job_when_the_disk_behind_its_output_is_full(home: Path) -> None:
    (home / "train.py").write_text("import time\ntime.sleep(600)\n")
    (home / "job.yaml").write_text("script: train.py\n")
    command = [sys.executable, "-m", "launcher", "run", "job.yaml"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, check=False, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, _still_run(home)) == (1, []), done.stderr
    assert "cancelling job" in done.stderr and "Traceback" not in done.stderr


def _still_run(home: Path) -> list[Path]:
    """The folders of jobs whose supervisor runs."""
    processes = {folder: Process.read(folder) for folder in (home / "runs").iterdir()}
    return [folder for folder, process in processes.items() if process is None or process.alive()]


@pytest.mark.parametrize(
    "program",
    [
        Torchrun("train.py", workers_per_node=2),
        Torchrun("train", module=True, workers_per_node=2),
        Torchrun(sys.executable, "train.py", no_python=True, name="a", workers_per_node=2),
    ],
    ids=["script", "module", "command"],
)
def test_a_torchrun_that_is_called_runs_where_it_is(home: Path, program: Torchrun) -> None:
    """Through submitit's DebugExecutor: in this process, on the local cluster."""
    job = DebugExecutor(home / "logs").submit(program, "--more")
    assert job.result()["name"] == "done"
    (folder,) = (home / "runs").iterdir()
    assert (folder / "log" / "attempt-0" / "rank-1.log").read_text() == "rank 1\n"
    assert json.loads((folder / "job.json").read_text())["args"][-1] == "--more"


def test_a_task_beside_task_0_stays_until_it_is_done_and_gets_its_outcome(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tasks of one job, as srun starts them, each a process of its own."""
    (home / "train.py").write_text("import time, pathlib\nwhile not pathlib.Path('end').exists(): time.sleep(0.05)\n")
    call = "from launcher import Torchrun; print(Torchrun('train.py')()['name'])"
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "local")
    monkeypatch.setenv("SUBMITIT_LOCAL_JOB_ID", "7")
    monkeypatch.setenv("SUBMITIT_FOLDER", str(home / "logs"))
    tasks = []
    for number in ("1", "0"):
        monkeypatch.setenv("SUBMITIT_LOCAL_GLOBALID", number)
        tasks.append(subprocess.Popen([sys.executable, "-c", call], stdout=subprocess.PIPE, text=True))
    until(lambda: "workers_started" in _text(home / "logs" / "7_torchrun-0" / "events.jsonl"))
    assert tasks[0].poll() is None
    (home / "end").touch()
    said = [task.communicate(timeout=60)[0].splitlines() for task in tasks]
    assert said[0] == ["done"] and said[1][-1] == "done"
    # The job that they are in is requeued: what had finished is not run again.
    again = subprocess.run([sys.executable, "-c", call], check=True, capture_output=True, text=True)
    assert again.stdout == "done\n"


def test_a_task_whose_supervisor_never_comes_says_whom_it_waited_for(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_allocation, "START_TIMEOUT_S", 0.0)
    for name, value in (("EXECUTOR", "local"), ("LOCAL_JOB_ID", "7"), ("LOCAL_GLOBALID", "1")):
        monkeypatch.setenv(f"SUBMITIT_{name}", value)
    with pytest.raises(LauncherError, match=r"task 0 of this job supervises, but cannot be reached"):
        Torchrun("train.py")()


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


# On a real Slurm, without accounting.


@pytest.mark.slurm
def test_a_job_in_a_slurm_without_accounting_has_a_state_and_an_end(slurm_cluster: Any) -> None:
    program = """
        import time
        from launcher import Executor, Torchrun
        open("train.py", "w").write("import os; print(os.environ['RANK'])")
        executor = Executor()
        executor.update_parameters(nodes=1, timeout_min=10)
        job = executor.submit(Torchrun("train.py"))
        print(job.result()["name"], job.state, "attempt_start" in job.logs(supervisor=True), job.stdout())
        executor.update_parameters(slurm_additional_parameters={"hold": True})
        held = executor.submit(Torchrun("train.py"))
        print(held.state)
        held.cancel()
        print(held.get_info()["State"])
    """
    lines = [line.strip() for line in program.splitlines()]
    done = slurm_cluster.run_as_user([sys.executable, "-c", "\n".join(lines)], timeout_s=120)
    assert done.stdout.split("\n")[:4] == ["done COMPLETED True 0", "", "PENDING", "CANCELLED"]


@pytest.mark.slurm
def test_on_slurm_the_jobs_options_hold_against_sbatch_variables(slurm_cluster: Any) -> None:
    program = """
        import os, subprocess
        from launcher import Executor, Torchrun
        open("train.py", "w").close()
        names = ("SBATCH_TIMELIMIT", "SBATCH_NO_REQUEUE", "SBATCH_JOB_NAME", "SBATCH_SIGNAL")
        os.environ.update(dict(zip(names, ("3", "1", "other", "TERM@60"))))
        job = Executor(cluster="slurm").submit(Torchrun("train.py", time="1-0", slurm={"hold": True}))
        print(subprocess.run(["scontrol", "show", "job", job.job_id], stdout=subprocess.PIPE, text=True).stdout)
        job.cancel()
    """
    lines = [line.strip() for line in program.splitlines()]
    shown = slurm_cluster.run_as_user([sys.executable, "-c", "\n".join(lines)], timeout_s=120).stdout.split()
    assert {"TimeLimit=1-00:00:00", "Requeue=1", "JobName=train"} <= {*shown}
