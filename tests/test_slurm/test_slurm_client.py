from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from slurm import CommandError, Slurm, SlurmError, command
from slurm.client import submitted_job
from slurm.command import Result
from slurm.testbed import TestCluster

RECORDED = Path(__file__).parent / "recorded"


class Answers:
    """A runner that answers from a table and remembers what it was asked."""

    def __init__(self, stdout: str = "", stderr: str = "") -> None:
        self.asked: list[tuple[str, ...]] = []
        self.stdout = stdout
        self.stderr = stderr

    def __call__(self, argv: Sequence[str], **_: Any) -> Result:
        self.asked.append(tuple(argv))
        done = Result(
            argv=tuple(argv), returncode=int(bool(self.stderr)), stdout=self.stdout, stderr=self.stderr, seconds=0.0
        )
        if self.stderr:
            raise CommandError(done, "exit code 1")
        return done


def test_submits_a_file_with_a_users_own_options_before_it() -> None:
    run = Answers("Submitted batch job 7\n")
    slurm = Slurm(run=run)
    assert slurm.submit_file(["-p", "train"], Path("job.sh")) == "Submitted batch job 7\n"
    assert slurm.test_only(["-p", "train"], "job.sh") == "Submitted batch job 7"
    assert run.asked == [("sbatch", "-p", "train", "job.sh"), ("sbatch", "--test-only", "-p", "train", "job.sh")]
    with pytest.raises(CommandError, match="Invalid account"):
        Slurm(run=Answers(stderr="sbatch: error: Invalid account")).submit_file([], "job.sh")


@pytest.mark.parametrize(
    "stdout",
    [
        "519605\n",
        "519605;cluster\n",
        "Submitted batch job 519605\n",
        "Submitted batch job 519605 on cluster c\n",
        "\x1b[32mSubmitted batch job 519605\x1b[0m\n",
        "  Submitted batch job 519605  \n",
        "Welcome to the machine 3\n--> Verifying quota...OK\n519605\n",
        "519605",
    ],
)
def test_the_number_of_a_submitted_job_is_read_among_what_wrappers_print(stdout: str) -> None:
    assert submitted_job(stdout) == 519605
    assert Slurm(run=Answers(stdout)).submit([], "#!/bin/sh") == 519605


@pytest.mark.parametrize("stdout", ["", "queued\n", "job 5 of 7\n", "5 jobs are queued\n"])
def test_no_number_of_a_job_is_made_up(stdout: str) -> None:
    assert submitted_job(stdout) is None
    with pytest.raises(SlurmError, match="expected the job's number"):
        Slurm(run=Answers(stdout)).submit([], "#!/bin/sh")


def test_generic_resources_are_those_of_the_named_partitions_or_the_default_one() -> None:
    run = Answers("train*|gpu:8(S:0-1)\ndebug|(null)\n")
    assert Slurm(run=run).gres() == ("gpu:8(S:0-1)",)
    assert Slurm(run=run).gres("train,debug") == ("gpu:8(S:0-1)", "(null)")
    assert run.asked[1] == ("sinfo", "--noheader", "--format=%P|%G", "--partition=train,debug")


def test_reads_a_job() -> None:
    run = Answers((RECORDED / "job_running.txt").read_text())
    job = Slurm(run=run).job(7)
    assert job is not None and job.nodes == ("n1", "n2", "n3")
    assert run.asked == [("scontrol", "show", "job", "--oneliner", "7")]


@pytest.mark.slurm
def test_a_task_with_the_number_of_its_array_is_told_from_the_others(slurm_cluster: TestCluster) -> None:
    """The one that starts last has it; Slurm tells of all tasks who asks for it."""
    array = ["sbatch", "--parsable", "--array=0-1%1", "-N1", "-o", "/dev/null", "--wrap", "sleep 600"]
    number = int(slurm_cluster.run_as_user(array).stdout)
    slurm = Slurm(env=os.environ | slurm_cluster.env)

    def state_of(job_id: int | str) -> str:
        job = slurm.job(job_id)
        assert job is not None
        return job.state

    until(lambda: state_of(f"{number}_0") == "RUNNING", "the first task")
    assert state_of(number) == "PENDING"


def test_a_job_that_slurm_does_not_know_is_none() -> None:
    assert Slurm(run=Answers(stderr="slurm_load_jobs error: Invalid job id specified")).job(999) is None


def test_a_controller_that_does_not_answer_is_an_error_and_not_an_unknown_job() -> None:
    with pytest.raises(CommandError, match="Unable to contact"):
        Slurm(run=Answers(stderr="slurm_load_jobs error: Unable to contact slurm controller")).job(7)


def test_reads_nodes_and_partitions() -> None:
    assert len(Slurm(run=Answers((RECORDED / "nodes.txt").read_text())).nodes()) == 4
    partitions = Slurm(run=Answers((RECORDED / "partitions.txt").read_text())).partitions()
    assert [(partition.name, len(partition.nodes)) for partition in partitions] == [
        ("train", 4),
        ("base", 4),
        ("urgent", 4),
    ]


@pytest.mark.slurm
def test_what_people_write_blinds_nobody(slurm_cluster: TestCluster) -> None:
    """Reasons, comments, a job's name and its line as a real Slurm prints them."""
    slurm, text = Slurm(env=os.environ | slurm_cluster.env), "mlx5_0 Port=1 down\nNodeName=n2 State=DOWN Comment=x"
    slurm.drain("n1", text)
    scontrol = ["scontrol", "update", "NodeName=n3", f"Comment=Reason=x [root@y]\n{text}"]
    command.run(scontrol, env=os.environ | slurm_cluster.env)
    nodes = {node.name: node for node in slurm.nodes()}
    assert list(nodes) == ["n1", "n3", "n4"], "one name, two records: neither n2 is believed"
    # Slurm's backfill may add PLANNED to a node, or take it away, at any time.
    assert nodes["n1"].flags - {"PLANNED"} == {"DRAIN"} and nodes["n3"].is_idle and nodes["n3"].reason == ""
    assert nodes["n1"].reason.startswith("mlx5_0 Port=1 down [root@"), nodes["n1"].reason
    for node in nodes.values():
        assert replace(slurm.node(node.name), flags=node.flags) == node
    with pytest.raises(CommandError, match="Node n9 not found"):
        slurm.node("n9")
    command.run([*scontrol[:3], "Comment="], env=os.environ | slurm_cluster.env)
    assert len(slurm.nodes()) == 4
    name = "a\nJobId=1 JobState=FAILED NodeList=n9"
    submit = [
        "sbatch",
        "--parsable",
        "--hold",
        f"--job-name={name}",
        f"--comment={name} UserId=root(0)",
        "--wrap",
        name,
    ]
    job = slurm.job(int(slurm_cluster.run_as_user(submit).stdout))
    assert job is not None
    assert (job.state, job.user, job.nodes) == ("PENDING", slurm_cluster.user, ())


def test_reads_the_states_of_jobs_from_the_queue_and_from_the_accounts() -> None:
    run = Answers((RECORDED / "squeue_states.txt").read_text())
    assert Slurm(run=run).states(["1", "2_0", "9"]) == {
        "1": ("RUNNING", "n1"),
        "2_0": ("CANCELLED", ""),
        "2_1": ("PENDING", ""),
        "3": ("RUNNING", "n[2-3]"),  # being preempted: its processes still run
    }
    assert "--jobs=1,2_0,9" in run.asked[0]
    run = Answers((RECORDED / "sacct_states.txt").read_text())
    assert Slurm(run=run).recorded_states([1, 2]) == {"1": ("COMPLETED", "n1"), "2_0": ("CANCELLED", "None assigned")}


def test_where_the_queue_knows_none_of_the_jobs_there_are_no_states() -> None:
    assert Slurm(run=Answers(stderr="slurm_load_jobs error: Invalid job id specified")).states(["42"]) == {}


def test_a_queue_that_does_not_answer_is_an_error_and_not_a_job_that_has_ended() -> None:
    with pytest.raises(CommandError, match="Unable to contact"):
        Slurm(run=Answers(stderr="slurm_load_jobs error: Unable to contact slurm controller")).states(["42"])
    with pytest.raises(CommandError, match="accounting storage is disabled"):
        Slurm(run=Answers(stderr="Slurm accounting storage is disabled")).recorded_states(["42"])


@pytest.mark.slurm
def test_a_job_that_waits_is_cancelled_and_one_that_runs_gets_a_signal(slurm_cluster: TestCluster) -> None:
    slurm = Slurm(env=os.environ | slurm_cluster.env)

    def submit(*options: str) -> str:
        wait = "trap 'exit 0' INT; while :; do sleep 0.1; done"
        argv = ["sbatch", "--parsable", "-N1", "-o", "/dev/null", *options, "--wrap", wait]
        return slurm_cluster.run_as_user(argv).stdout.strip()

    running, held, array = submit(), submit("--hold"), submit("--hold", "--array=0-1")
    until(lambda: slurm.states([running])[running][0] == "RUNNING", "the job's start")
    known = slurm.states([running, held, array, "999999"])
    assert set(known) == {running, held, f"{array}_0", f"{array}_1"}
    assert [known[job][0] for job in (running, held, f"{array}_0")] == ["RUNNING", "PENDING", "PENDING"]
    assert known[running][1]
    for job in (running, held, array):
        slurm.cancel_pending(job)
    until(lambda: slurm.states([held])[held][0] == "CANCELLED", "the end of the job that waited")
    assert slurm.states([running])[running][0] == "RUNNING"
    slurm.signal_batch(running, "INT")
    until(lambda: slurm.states([running])[running][0] in ("COMPLETED", "COMPLETING"), "the end by the signal")
    assert slurm.states(["999999"]) == {}


@pytest.mark.slurm
@pytest.mark.pmix
def test_srun_says_whether_it_knows_pmix(slurm_cluster: TestCluster, tmp_path: Path) -> None:
    assert "pmix" in Slurm(env=os.environ | slurm_cluster.env).mpi_types()
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    for plugin in Path("/usr/lib/x86_64-linux-gnu/slurm-wlm").iterdir():
        if "pmix" not in plugin.name:
            (plugins / plugin.name).symlink_to(plugin)
    conf = tmp_path / "slurm.conf"
    conf.write_text(f"{Path(slurm_cluster.env['SLURM_CONF']).read_text()}\nPluginDir={plugins}\n")
    assert set(Slurm(env=os.environ | slurm_cluster.env | {"SLURM_CONF": str(conf)}).mpi_types()) >= {"none", "pmi2"}
    assert "pmix" not in Slurm(env=os.environ | slurm_cluster.env | {"SLURM_CONF": str(conf)}).mpi_types()


def test_asks_slurm_to_cancel_requeue_and_drain() -> None:
    run = Answers()
    slurm = Slurm(run=run)
    slurm.cancel(7)
    slurm.cancel_pending("7_1")
    slurm.signal_batch(7, "INT")
    slurm.requeue(7)
    slurm.exclude(7, ["n1", "n2", "n4"])
    slurm.drain("n3", "holdfast: gpu 3 lost")
    assert run.asked == [
        ("scancel", "7"),
        ("scancel", "--state=PENDING", "7_1"),
        ("scancel", "--batch", "--signal=INT", "7"),
        ("scontrol", "requeue", "7"),
        ("scontrol", "update", "JobId=7", "ExcNodeList=n[1-2,4]"),
        ("scontrol", "update", "NodeName=n3", "State=DRAIN", "Reason=holdfast: gpu 3 lost"),
    ]


def test_a_reservation_that_is_there_gets_these_nodes() -> None:
    asked: list[tuple[str, ...]] = []

    def run(argv: Sequence[str], **_: object) -> Result:
        asked.append(tuple(argv))
        result = Result(argv=tuple(argv), returncode=0, stdout="ReservationName=r Nodes=n1\n", stderr="", seconds=0.0)
        if argv[1] == "create":
            raise CommandError(result, "exit code 1")
        return result

    Slurm(run=run).reserve("r", ["n1", "n2"])
    assert asked[-1] == ("scontrol", "update", "ReservationName=r", "Nodes=n[1-2]")
    with pytest.raises(CommandError):
        Slurm(run=run).reserve("another", ["n1"])


def test_a_drain_without_a_reason_is_refused() -> None:
    run = Answers()
    with pytest.raises(SlurmError, match="drain of n3: no reason"):
        Slurm(run=run).drain("n3", " ")
    assert run.asked == []


def test_for_how_long_a_controller_is_up() -> None:
    config = (RECORDED / "config.txt").read_text()
    later = config.replace("as of 2026-11-22T19:07:04", "as of 2026-11-22T20:07:05")
    assert Slurm(run=Answers(later)).controller_up_s() == 3601
    assert Slurm(run=Answers(config.replace("= 2026-11-22T19:07:04", "= 19:07:04"))).controller_up_s() is None
    assert Slurm(run=Answers("")).controller_up_s() is None


def test_drained_nodes_are_read_with_who_drained_them_and_why() -> None:
    """As 22.05 prints them: a line for each partition of a node."""
    run = Answers((RECORDED / "sinfo_drained.txt").read_text())
    found = Slurm(run=run).drained(["n1", "n2", "n3"])
    assert {name: (node.user, node.reason) for name, node in found.items()} == {
        "n1": ("root", "a broken | fan, see #12"),
        "n2": ("root", "Action:Replace"),
    }
    (asked,) = run.asked
    assert asked[:1] == ("sinfo",) and "--nodes=n[1-3]" in asked and "--states=drain,fail" in asked


def test_no_node_is_drained() -> None:
    assert Slurm(run=Answers("")).drained(["n1"]) == {}


def test_a_job_is_shrunk_from_outside_of_it_because_scontrol_would_leave_scripts_behind() -> None:
    seen: list[tuple[tuple[str, ...], dict[str, str]]] = []

    def run(argv: Sequence[str], *, env: dict[str, str], **_: Any) -> Result:
        seen.append((tuple(argv), env))
        return Result(argv=tuple(argv), returncode=0, stdout="", stderr="", seconds=0.0)

    Slurm(run=run, env={"PATH": "/bin", "SLURM_JOB_ID": "7", "SLURM_JOBID": "7"}).shrink("7", ["n1", "n2", "n4"])
    assert seen == [(("scontrol", "update", "JobId=7", "NodeList=n[1-2,4]"), {"PATH": "/bin"})]
