"""The files in recorded/ are the output of real commands of Slurm 22.05."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm.records import Job, Node, Partition, RecordError

RECORDED = Path(__file__).parent / "recorded"


def recorded(name: str) -> str:
    return (RECORDED / name).read_text()


def test_reads_a_running_job() -> None:
    job = Job.parse(recorded("job_running.txt"))
    assert job == Job(
        id=7,
        user="nobody",
        state="RUNNING",
        reason="",
        partition="train",
        nodes=("n1", "n2", "n3"),
        batch_host="n1",
        restarts=0,
        exit_code=0,
    )
    assert not job.has_ended


def test_reads_a_pending_job() -> None:
    job = Job.parse(recorded("job_pending.txt"))
    assert (job.state, job.nodes, job.batch_host, job.has_ended) == ("PENDING", (), None, False)


def test_reads_a_requeued_job() -> None:
    job = Job.parse(recorded("job_requeued.txt"))
    assert (job.state, job.reason, job.restarts, job.nodes) == ("PENDING", "BeginTime", 1, ())


def test_a_node_that_was_cut_out_of_a_job_is_not_one_of_its_nodes() -> None:
    job = Job.parse(recorded("job_shrunk.txt"))
    assert (job.state, job.nodes, job.batch_host) == ("RUNNING", ("n1", "n3"), "n1")


def test_a_silent_node_is_down_and_says_since_when() -> None:
    node = Node.parse(recorded("node_down.txt"))
    assert (node.state, node.flags, node.responds) == ("DOWN", {"NOT_RESPONDING"}, False)
    assert node.reason.startswith("Not responding [root@")


def test_the_time_left_is_told_by_durations_alone() -> None:
    running = recorded("job_running.txt")
    assert Job.parse(running).time_left_s is None
    assert Job.parse(recorded("job_shrunk.txt")).time_left_s == 365 * 86400 - 48
    limited = running.replace("TimeLimit=UNLIMITED", "TimeLimit=1-00:01:00")
    assert Job.parse(limited.replace("RunTime=00:00:02", "RunTime=1-00:01:30")).time_left_s == -30
    assert Job.parse(running.replace("TimeLimit=UNLIMITED", "TimeLimit=Partition_Limit")).time_left_s is None


def test_an_ended_job_has_ended() -> None:
    job = Job.parse("JobId=1 UserId=a(1) JobState=NODE_FAIL Partition=p ExitCode=1:0")
    assert job.has_ended and job.exit_code == 1


@pytest.mark.parametrize("name", ["x JobState=COMPLETED", "x\n   JobState=COMPLETED"])
def test_a_job_name_that_imitates_a_field_is_refused_not_believed(name: str) -> None:
    text = recorded("job_running.txt").replace("two words", name)
    with pytest.raises(RecordError, match="JobState= stands there 2 times"):
        Job.parse(text)


@pytest.mark.parametrize("word", ["SIGNALING", "RESIZING", "STOPPED"])
def test_a_job_that_shows_what_is_done_to_it_runs_on(word: str) -> None:
    assert Job.parse(recorded("job_running.txt").replace("JobState=RUNNING", f"JobState={word}")).state == "RUNNING"


def test_a_job_name_that_looks_like_other_fields_does_no_harm() -> None:
    assert Job.parse(recorded("job_running.txt").replace("two words", "lr=3e-4 Priority=1")).state == "RUNNING"


def test_fields_of_newer_releases_do_no_harm() -> None:
    line = recorded("job_running.txt").replace("Power=", "TresPerNode=gres/gpu:8 LicensesAlloc=(null) Power=")
    assert Job.parse(line).nodes == ("n1", "n2", "n3")


def test_reads_nodes() -> None:
    nodes = {node.name: node for node in map(Node.parse, recorded("nodes.txt").splitlines())}
    assert list(nodes) == ["n1", "n2", "n3", "n4"]
    assert nodes["n1"].address == "10.213.0.1" and nodes["n1"].partitions == ("train", "base", "urgent")
    assert nodes["n1"].is_idle and nodes["n1"].cpus == 8
    assert nodes["n4"].flags == {"DRAIN"} and not nodes["n4"].is_idle and nodes["n4"].responds
    assert nodes["n4"].reason.startswith("gpu 3: row remap failed [root@")


@pytest.mark.parametrize(
    ("written", "state", "flags", "responds"),
    [
        ("IDLE", "IDLE", set(), True),
        ("IDLE*", "IDLE", {"NOT_RESPONDING"}, False),
        ("DOWN*+DRAIN", "DOWN", {"NOT_RESPONDING", "DRAIN"}, False),
        ("IDLE+NOT_RESPONDING", "IDLE", {"NOT_RESPONDING"}, False),
        ("MIXED+PLANNED", "MIXED", {"PLANNED"}, True),
        ("UNKNOWN*", "UNKNOWN", {"NOT_RESPONDING"}, False),
    ],
)
def test_reads_every_way_to_write_a_nodes_state(written: str, state: str, flags: set[str], responds: bool) -> None:
    node = Node.parse(f"NodeName=a CPUTot=1 State={written} Reason=(null)")
    assert (node.state, node.flags, node.responds, node.reason) == (state, flags, responds, "")


def test_reads_partitions() -> None:
    train, base, urgent = map(Partition.parse, recorded("partitions.txt").splitlines())
    assert train == Partition(
        name="train",
        state="UP",
        is_default=True,
        nodes=("n1", "n2", "n3", "n4"),
    )
    assert [partition.is_default for partition in (base, urgent)] == [False, False]


@pytest.mark.parametrize("text", ["", "slurm_load_jobs error: Unable to contact slurm controller", "JobId=x UserId=a"])
def test_what_is_no_record_is_refused_with_the_text(text: str) -> None:
    with pytest.raises(RecordError) as caught:
        Job.parse(text)
    assert caught.value.text == text
