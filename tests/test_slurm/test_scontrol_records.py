"""The files in recorded/ are the output of real commands of Slurm 22.05."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm.records import Job, Node, Partition, RecordError, read_all

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
        cpus_per_node=1,
        asked="cpu=3,node=3,billing=3",
    )
    assert not job.has_ended


@pytest.mark.parametrize(
    ("printed", "memory_bytes", "cpus"),
    [
        ("TRES=cpu=3,node=3,billing=3", None, 1),
        ("TRES=cpu=10,mem=62.50G,node=4,billing=10,gres/gpu=4", 16777216000, 3),
        ("TRES=cpu=2,mem=900M,node=3", 300 << 20, 1),
        ("ReqTRES=cpu=1,mem=1M,node=1 AllocTRES=cpu=16,mem=2T,node=2", 1 << 40, 8),
        ("TRES=(null)", None, None),
    ],
)
def test_a_jobs_share_of_a_node_is_what_slurm_allocated(
    printed: str, memory_bytes: int | None, cpus: int | None
) -> None:
    text = recorded("job_running.txt").replace("TRES=cpu=3,node=3,billing=3", printed)
    for line in (text, text.replace("Comment=a b", "Comment= AllocTRES=cpu=999,mem=9T,node=1")):
        job = Job.parse(line)
        assert (job.memory_per_node_bytes, job.cpus_per_node) == (memory_bytes, cpus)
        assert job.asked == printed.split()[0].partition("=")[2]


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
    job = Job.parse("JobId=1 UserId=a(1) JobState=NODE_FAIL ExitCode=1:0 Partition=p NumNodes=1")
    assert job.has_ended and job.exit_code == 1 and not job.cannot_write


@pytest.mark.parametrize("name", ["x JobState=COMPLETED", "x\n   JobState=COMPLETED NumNodes=2"])
def test_a_job_name_that_imitates_a_field_changes_nothing(name: str) -> None:
    text = recorded("job_running.txt")
    assert Job.parse(text.replace("two words", name)) == Job.parse(text)


def test_a_job_name_that_imitates_a_whole_record_is_refused_not_believed() -> None:
    text = recorded("job_running.txt")
    whole = text.replace("two words", "x")
    with pytest.raises(RecordError, match="a text looks like them"):
        Job.parse(text.replace("two words", whole))


def test_slurm_24_11_says_of_a_killed_script_that_a_signal_was_raised() -> None:
    """Recorded on Debian 13, of a job whose comment imitates other fields."""
    job = Job.parse(recorded("job_killed_24_11.txt"))
    assert (job.state, job.reason, job.nodes) == ("FAILED", "RaisedSignal:9(Killed)", ("n1",))
    assert job.has_ended and job.has_lost_its_script


_JOB = recorded("job_running.txt").replace("Network=(null)", "Network=(null) SubmitLine=sbatch x.sh")
_NODE = recorded("nodes.txt").splitlines()[3] + " Comment=of an admin Extra=more"
_WORDS = st.sampled_from(
    [
        *("JobState=FAILED", "Reason=None", "UserId=root(0)", "Restarts=9", "NodeList=n9", "BatchHost=n9"),
        *("NumNodes=9", "\nJobId=9", "\nNodeName=n9", "CPUTot=1", "NodeAddr=n9", "Port=1", "State=DOWN", "Comment=y"),
        *("SlurmdStartTime=x", "ReservationName=r", "down", "=", "(null)", "[root@2026-11-20T19:12:08]", "[", "]", "@"),
        "Account=a",
    ]
)
hostile = st.lists(_WORDS | st.text(max_size=8), max_size=12).map(" ".join)


@given(name=hostile, account=hostile, features=hostile, submit_line=hostile, comment=hostile)
def test_what_a_user_writes_into_a_job_is_never_taken_for_slurms_words(
    name: str, account: str, features: str, submit_line: str, comment: str
) -> None:
    text = _JOB.replace("JobName=two words", f"JobName={name}").replace("Account=(null)", f"Account={account}")
    text = text.replace("Features=(null)", f"Features={features}").replace("Comment=a b", f"Comment={comment}")
    text = text.replace("SubmitLine=sbatch x.sh", f"SubmitLine={submit_line}")
    own = "UserId=" not in name and "=" not in account and "NumNodes=" not in features + submit_line + comment
    try:
        job = Job.parse(text)
        assert dataclasses.replace(job, account="") == Job.parse(_JOB)
        assert job.account in ("", account.strip()) or not own
    except RecordError:
        assert not own


@given(features=hostile, reason=hostile, comment=hostile, extra=hostile)
def test_what_people_write_about_a_node_is_never_taken_for_slurms_words(
    features: str, reason: str, comment: str, extra: str
) -> None:
    text = _NODE.replace("AvailableFeatures=(null)", f"AvailableFeatures={features}")
    text = text.replace("Reason=gpu 3: row remap failed", f"Reason={reason}").replace("of an admin", comment)
    text = text.replace("Extra=more", f"Extra={extra}")
    own = "=" not in features and "SlurmdStartTime=" not in reason + comment + extra
    try:
        node, clean = Node.parse(text), Node.parse(_NODE)
    except RecordError:
        assert not own
    else:
        assert dataclasses.replace(node, reason="") == dataclasses.replace(clean, reason="")
        assert node.reason.startswith(reason.strip()) or "[" in reason
        assert node.reason == f"{reason} [root@2026-11-20T19:12:08]".strip() or "@" in reason + comment + extra


@given(hostile)
def test_a_node_that_cannot_be_read_costs_no_other_node(reason: str) -> None:
    lines = recorded("nodes.txt").splitlines()
    text = "\n".join([*lines[:3], lines[3].replace("gpu 3: row remap failed", reason)])
    nodes, errors = read_all(text, "NodeName", Node.parse)
    assert nodes[:3] == tuple(map(Node.parse, lines[:3])) and len(nodes) + len(errors) >= 4
    nodes, errors = read_all(text + "\nNodeName=n1 State=DOWN", "NodeName", Node.parse)
    assert [node.name for node in nodes[:2]] == ["n2", "n3"] and len(errors) >= 2, "which n1 is true is not known"


def test_a_listing_of_which_nothing_can_be_read_is_an_error() -> None:
    with pytest.raises(RecordError, match="expected NodeName= at its start"):
        read_all("NodeName=n1 Status=IDLE\nNodeName=n2 Status=IDLE\n", "NodeName", Node.parse)
    assert read_all("", "NodeName", Node.parse) == ((), ())


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
    node = Node.parse(f"NodeName=a CPUTot=1 State={written} SlurmdStartTime=None")
    assert (node.state, node.flags, node.responds, node.reason) == (state, flags, responds, "")


@pytest.mark.parametrize(
    ("written", "is_idle"),
    [
        ("IDLE+CLOUD", True),
        ("IDLE+CLOUD+PLANNED", True),
        ("IDLE+DYNAMIC_NORM", True),
        ("IDLE+DYNAMIC_FUTURE", True),
        ("IDLE+CLOUD+POWERED_DOWN", False),
        ("IDLE+CLOUD+POWERING_UP", False),
        ("IDLE+CLOUD+DRAIN", False),
        ("IDLE+MAINTENANCE", False),
        ("IDLE+RESERVED", False),
        ("IDLE*+CLOUD", False),
        ("MIXED+CLOUD", False),
    ],
)
def test_a_node_is_idle_however_it_was_added_to_the_cluster(written: str, is_idle: bool) -> None:
    assert Node.parse(f"NodeName=a CPUTot=1 State={written} SlurmdStartTime=None").is_idle is is_idle


def test_reads_partitions() -> None:
    train, base, urgent = map(Partition.parse, recorded("partitions.txt").splitlines())
    assert train == Partition(
        name="train",
        state="UP",
        is_default=True,
        nodes=("n1", "n2", "n3", "n4"),
        priority_tier=5,
        preempt_mode="REQUEUE",
        grace_time_s=10,
    )
    assert [partition.is_default for partition in (base, urgent)] == [False, False]


@pytest.mark.parametrize("text", ["", "slurm_load_jobs error: Unable to contact slurm controller", "JobId=x UserId=a"])
def test_what_is_no_record_is_refused_with_the_text(text: str) -> None:
    with pytest.raises(RecordError) as caught:
        Job.parse(text)
    assert caught.value.text == text
