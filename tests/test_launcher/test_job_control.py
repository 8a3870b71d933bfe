"""What a user reads of a job that waits in Slurm's queue."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import slurm
from launcher.clusters.slurm.queue import why_it_waits
from launcher.clusters.slurm.status import with_boosters
from launcher.history.size import BoosterNow, BoostersNow
from launcher.history.status import JobStatus
from launcher.job.registry import KnownJob
from launcher.job.scale_request import ScaleRequest
from launcher.submission.job_control import status_now, with_request
from slurm import Job, Node
from slurm.records import NamedJob

RECORDED = Path(__file__).parents[1] / "test_slurm" / "recorded"
PENDING = RECORDED / "job_pending.txt"


@pytest.mark.parametrize(
    ("reason", "held"),
    [("Resources", False), ("launch_failed_requeued_held", True), ("JobHeldAdmin", True), ("(null)", False)],
)
def test_a_held_job_is_told_from_one_that_waits_its_turn(reason: str, held: bool) -> None:
    job = Job.parse(PENDING.read_text().replace("Reason=Resources", f"Reason={reason}"))
    told = why_it_waits(job, list, dict, dict)
    assert told.startswith("waits in the queue: ")
    assert (f"scontrol release {job.id}" in told) is held


@pytest.mark.parametrize(
    ("reason", "named"),
    [
        ("Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions", True),
        ("ReqNodeNotAvail,_UnavailableNodes:gpu_2", True),
        ("Priority", False),
    ],
)
def test_a_job_that_waits_for_drained_nodes_names_them_and_why(reason: str, named: bool) -> None:
    job = Job.parse(PENDING.read_text().replace("Reason=Resources", f"Reason={reason}"))
    line = "NodeName=gpu_{} CPUTot=8 State=IDLE{} Partitions={} SlurmdStartTime=None Reason={}"
    epilog = "Epilog error [root@2026-11-22T00:38:29]"
    lines = [line.format(1, "", "train", ""), line.format(2, "+DRAIN", "train", epilog)]
    lines.append(line.format(3, "+DRAIN", "other", "of no concern"))
    told = why_it_waits(job, lambda: [Node.parse(text) for text in lines], dict, dict)
    said = reason.replace("_", " ").replace("gpu 2", "gpu_2")
    assert told == f"waits in the queue: {said}" + (f"; gpu_2: {epilog}" if named else "")


def test_a_job_whose_environment_slurm_could_not_make_is_told_what_to_leave_out() -> None:
    """Since 25.05 Slurm requeues and holds it; before, it went on."""
    text = PENDING.read_text().replace("Reason=Resources", "Reason=user_env_retrieval_failed_requeued_held")
    job = Job.parse(text)
    told = why_it_waits(job, list, dict, dict)
    assert "leave out `slurm: {export: ...}`" in told and told.endswith(f"scontrol release {job.id}")
    assert "sinfo -R" not in told


def test_a_job_that_waits_for_a_limit_of_its_qos_is_told_of_it() -> None:
    job = Job.parse(PENDING.read_text().replace("Reason=Resources", "Reason=QOSMaxNodePerUserLimit"))
    told = why_it_waits(job, list, dict, lambda job: {"small": {"MaxTRESPU": "node=2"}})
    assert told.startswith(
        "waits in the queue: QOSMaxNodePerUserLimit; QOS small has MaxTRESPU node=2, the job asks for"
    )


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_requeued_job_is_told_how_long_slurm_delays_it(restarts: int) -> None:
    text = (
        PENDING.read_text()
        .replace("Reason=Resources", "Reason=BeginTime")
        .replace("Restarts=0", f"Restarts={restarts}")
    )
    told = why_it_waits(Job.parse(text), list, lambda: {"SchedulerParameters": "bf_interval=1,requeue_delay=5"}, dict)
    assert ("by 5 s here (SchedulerParameters=requeue_delay=5)" in told) is bool(restarts)


def job_in(folder: Path) -> KnownJob:
    return KnownJob(job_id="7", name="gpt", folder=folder, cluster="slurm", nodes=2, spares=0)


def test_why_a_booster_waits_is_what_slurm_says_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Answers:
        def jobs_named(self, name: str) -> dict[str, NamedJob]:
            assert name == "gpt-booster-of-7-"
            waits = NamedJob(state="PENDING", reason="PartitionDown")
            return {"8": waits, "9": NamedJob(state="RUNNING"), "10": NamedJob(state="RUNNING")}

        def cluster_name(self) -> str:
            return ""

    monkeypatch.setattr(slurm, "Slurm", Answers)
    boosters = (
        BoosterNow(id="8", size=1, reason="Priority"),
        BoosterNow(id="9", size=1, reason="Priority"),
        BoosterNow(id="10", size=1, state="training"),
    )
    now = BoostersNow(nodes=2, boosters=boosters)
    status = with_boosters(job_in(tmp_path), JobStatus(size=now.text(), elastic=now))
    assert status.elastic is not None
    found = [(each.state, each.reason) for each in status.elastic.boosters]
    assert found == [("queued", "PartitionDown"), ("starting", ""), ("training", "")]
    assert status.size is not None and "booster 8 (1 node) waits in the queue: PartitionDown" in status.size


def test_a_size_that_was_requested_before_the_start_is_shown(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    assert with_request(job, JobStatus()).size is None
    ScaleRequest(host="login", nodes=3).write(tmp_path)
    assert with_request(job, JobStatus()).size == "3 nodes requested by a user"
    assert with_request(job, JobStatus(attempt=2)).size is None


# As slurmstepd of 22.05 writes it.
IN_TIME = "slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-28T19:20:50 DUE TO TIME LIMIT ***"
NODE = (
    "slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-28T19:21:43 DUE TO NODE FAILURE, "
    "SEE SLURMCTLD LOG FOR DETAILS ***"
)
TAKEN = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-27T10:00:00 DUE TO PREEMPTION ***"
KILLED = "slurmstepd: error: Detected 1 oom_kill event in StepId=7.batch. Some of the step tasks have been OOM Killed."


@pytest.mark.parametrize(
    ("state", "log", "fault_class", "proof"),
    [
        ("TIMEOUT", [IN_TIME, "Terminated"], "time_limit", IN_TIME),
        ("NODE_FAIL", [TAKEN, NODE], "node_lost", NODE),
        ("NODE_FAIL", [TAKEN], "node_lost", "Slurm's state of the job: NODE_FAIL"),
        ("OUT_OF_MEMORY", [KILLED], "host_memory", KILLED),
        ("FAILED", [KILLED], "host_memory", KILLED),
        ("PREEMPTED", [], "preemption", "Slurm's state of the job: PREEMPTED"),
        ("FAILED", ["print: DUE TO TIME LIMIT", "Killed"], "unknown", ""),
    ],
)
def test_why_a_job_that_left_no_outcome_has_ended_is_read_from_slurms_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, log: list[str], fault_class: str, proof: str
) -> None:
    known = KnownJob(job_id="7", name="gpt", cluster="slurm", folder=tmp_path, nodes=2, spares=0)
    events = [
        {
            "time": 5.0,
            "event": "job_start",
            "cluster": "slurm",
            "run_id": "slurm-c-7",
            "nodes_requested": 2,
            "spares": 0,
        },
        {"time": 6.0, "event": "attempt_start", "attempt": 0, "nodes": ["n1"], "spares": [], "rung": "start"},
    ]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(each) + "\n" for each in events))
    (tmp_path / "7_0_log.err").write_text("".join(f"{line}\n" for line in log))
    ended = Job.parse(PENDING.read_text().replace("JobState=PENDING", f"JobState={state}"))
    monkeypatch.setattr(slurm.Slurm, "job", lambda self, job_id: ended)
    status = status_now(known)
    assert status.state == "lost"
    (story,) = status.why
    assert (story.kind, story.fault_class, story.proof, story.attempt) == ("lost", fault_class, proof, 0)
    assert story.advice and story.done == "the job ended as lost"
