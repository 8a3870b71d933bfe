"""Boosters: the script that Slurm gets, what is asked of Slurm, and what its answers mean."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from test_clusters_slurm import ENV, Scontrol, cluster
from waiting import until

from ckpt.agent.process.launch import PYTHON
from holdfast.base.environment import Variable
from launcher.clusters.slurm import booster
from launcher.clusters.slurm import cluster as slurm_cluster
from launcher.clusters.slurm.boosters import SlurmBoosters
from launcher.core.inputs import AllocationState
from launcher.errors import UsageError
from launcher.job.booster_checks import require_booster
from launcher.job.jobfile import JobSpec
from launcher.runner.config import RunnerConfig
from launcher.scheduler.cluster import SeenAllocation
from slurm import CommandError, JobEnvironment, Slurm
from slurm.command import Result

JOB: dict[str, Any] = {
    "name": "gpt",
    "script": "s.py",
    "nodes": 2,
    "gpus_per_node": 8,
    "elastic": {
        "min_nodes": 2,
        "max_nodes": 6,
        "step": 2,
        "booster": {"partition": "boost", "qos": "scavenger", "time": "4:00:00", "slurm": {"nice": 100}},
    },
    "slurm": {"partition": "train", "mem": "64G", "constraint": "a100&ib", "exclude": "n[8-9]", "mail-type": "ALL"},
}
SCRIPT = f"""#!/bin/bash
#SBATCH --signal=TERM@60
#SBATCH --gpus-per-node=8
#SBATCH --mem=64G
#SBATCH --constraint='a100&ib'
#SBATCH --partition=boost
#SBATCH --qos=scavenger
#SBATCH --time=4:00:00
#SBATCH --nice=100
#SBATCH --job-name=gpt-booster-of-7-b3
#SBATCH --dependency=singleton
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclude='n[1-3,8-9]'
#SBATCH --no-requeue
#SBATCH --no-kill
#SBATCH --export=ALL
#SBATCH --open-mode=append
#SBATCH --output=/jobs/7/log/booster-%j.log
trap '' USR1 USR2
exec {shlex.join(PYTHON)} -u -m launcher.clusters.slurm.booster
"""


@pytest.fixture
def spec(tmp_path: Path) -> JobSpec:
    (tmp_path / "s.py").touch()
    return JobSpec.from_mapping(JOB, tmp_path)


def row(job_id: str, columns: str, number: str) -> str:
    """squeue's line about a booster."""
    return f"{job_id}|{columns}|gpt-booster-of-7-{number}|"


class Commands:
    """Answers sbatch and squeue; remembers what was asked."""

    def __init__(self, *rows: str) -> None:
        self.rows = list(rows)
        self.asked: list[tuple[str, ...]] = []
        self.script = ""
        self.env: dict[str, str] = {}

    def __call__(self, argv: Sequence[str], *, input: str = "", env: Any = None, **_: Any) -> Result:
        self.asked.append(tuple(argv))
        said = "\n".join(self.rows)
        if argv[0] == "sbatch":
            said, self.script, self.env = "8;big\n", input, env
        return Result(argv=tuple(argv), returncode=0, stdout=said, stderr="", seconds=0.0)


def boosters(spec: JobSpec, commands: Commands) -> SlurmBoosters:
    return SlurmBoosters(spec, Path("/jobs/7"), 7, Slurm(run=commands))


def test_its_script_has_the_jobs_nodes_and_its_own_queue_and_tells_nobody_by_mail(spec: JobSpec) -> None:
    assert boosters(spec, Commands()).script("b3", 2, ["n1", "n2", "n3"]) == SCRIPT


def test_it_is_submitted_outside_of_our_own_step_with_the_runs_environment(
    spec: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = ("SLURM_JOB_ID", "SLURM_MEM_PER_NODE", "HOLDFAST_MEMORY_DIR", "SLURM_CONF", "MY_OWN")
    defaults = ("SBATCH_TIMELIMIT", "SBATCH_QOS", "SBATCH_REQUEUE", "SBATCH_GPUS_PER_NODE", "SBATCH_MEM_PER_CPU")
    for name in (*ours, *defaults, "SBATCH_ACCOUNT"):
        monkeypatch.setenv(name, "ours")
    commands = Commands()
    assert boosters(spec, commands).ask("b3", 2, ["n1", "n2", "n3"], {"HOLDFAST_RUN_ID": "slurm-big-7"}) == "8"
    assert commands.asked[1:] == [("sbatch", "--parsable")] and commands.script == SCRIPT
    assert commands.env["HOLDFAST_ALLOCATION"] == "b3", "its runners say so"
    assert commands.env["HOLDFAST_RUN_ID"] == "slurm-big-7" and commands.env["MY_OWN"] == "ours"
    assert commands.env["SLURM_CONF"] == "ours"
    assert not {"SLURM_JOB_ID", "SLURM_MEM_PER_NODE", "HOLDFAST_MEMORY_DIR", *defaults} & commands.env.keys()
    assert commands.env["SBATCH_ACCOUNT"] == "ours"


def test_one_that_slurm_has_under_its_number_is_not_submitted_again(spec: JobSpec) -> None:
    """The supervisor that submitted it was killed before sbatch's answer."""
    commands = Commands(*(row(job_id, "PENDING|N/A|1:00:00||Priority", f"b{job_id}") for job_id in ("3", "30")))
    assert boosters(spec, commands).ask("b3", 2, [], {}) == "3"
    assert [argv[0] for argv in commands.asked] == ["squeue"]


# Stand for Slurm's commands on PATH: sbatch puts the job into the queue, and its answer never comes.
SBATCH = """#!/bin/sh
name=$(sed -n 's/^#SBATCH --job-name=//p')
echo "$((41 + $(wc -l < "$QUEUE")))|PENDING|N/A|1:00:00||Priority|$name|" >> "$QUEUE"
echo $$ > "$QUEUE.pid"
exec sleep 600
"""
SQUEUE = """#!/bin/sh
cat "$QUEUE"
"""
SUBMITS = """
import json, sys
from pathlib import Path
from launcher.clusters.slurm.boosters import SlurmBoosters
from launcher.job.jobfile import JobSpec
from slurm import Slurm
folder = Path(sys.argv[1])
SlurmBoosters(JobSpec.from_mapping(json.loads(sys.argv[2]), folder), folder, 7, Slurm()).ask("b3", 2, [], {})
"""


def test_a_booster_of_a_supervisor_that_was_killed_before_sbatchs_answer_is_found_and_not_submitted_again(
    spec: JobSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, sbatch, bin_dir = tmp_path / "queue", tmp_path / "queue.pid", tmp_path / "bin"
    queue.touch()
    bin_dir.mkdir()
    for name, text in (("sbatch", SBATCH), ("squeue", SQUEUE)):
        (bin_dir / name).write_text(text)
        (bin_dir / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_dir}:{os.environ['PATH']}")
    monkeypatch.setenv("QUEUE", str(queue))
    killed = subprocess.Popen([sys.executable, "-c", SUBMITS, str(tmp_path), json.dumps(JOB)])
    try:
        until(lambda: killed.poll() is not None or (sbatch.exists() and sbatch.read_text()), "job in the queue")
        killed.kill()
        assert killed.wait() == -signal.SIGKILL
        assert SlurmBoosters(spec, tmp_path, 7, Slurm()).ask("b3", 2, [], {}) == "41"
    finally:
        killed.kill()
        os.kill(int(sbatch.read_text()), signal.SIGKILL)
    assert len(queue.read_text().splitlines()) == 1


def test_of_two_jobs_with_one_number_the_younger_is_cancelled(spec: JobSpec) -> None:
    commands = Commands(*(row(number, "RUNNING|N/A|59:00|n1|None", "b3") for number in ("10", "9")))
    adapter = boosters(spec, commands)
    assert {*adapter.seen({"b3"})} == {"b3"} and adapter.job_ids({"b3"}) == {"b3": "9"}
    assert commands.asked[1:] == [("scancel", "10")]


def test_all_of_the_run_are_ended_by_their_names_and_those_of_other_runs_are_not(spec: JobSpec) -> None:
    waits = "PENDING|N/A|1:00:00||Priority"
    others = f"10|{waits}|gpt-booster-of-70-b1|", f"11|{waits}|mine|", f"12_[1-3]|{waits}|gpt-booster-of-8-b1|"
    commands = Commands(row("8", waits, "b1"), row("9", "CANCELLED|N/A|59:00||None", "b2"), *others)
    boosters(spec, commands).end_all()
    user = f"--user={os.getuid()}"
    assert commands.asked[1:] == [("scancel", user, "--name=gpt-booster-of-7-b1")]


def test_how_all_of_the_run_stand_and_those_that_slurm_has_forgotten_is_one_question(spec: JobSpec) -> None:
    queued, running, ended = AllocationState.QUEUED, AllocationState.RUNNING, AllocationState.ENDED
    expected: dict[str, tuple[str, tuple[Any, ...]]] = {
        "8": ("PENDING|N/A|1:00:00||Resources", (queued, "Resources")),
        "9": ("RUNNING|N/A|59:00|n[1-2]|None", (running, "running", ("n1", "n2"), False)),
        "10": ("PREEMPTED|2026-11-23T04:26:33|59:00|n1|None", (ended, "preempted", ("n1",), False)),
        "11": ("COMPLETING|N/A|59:00||None", (ended, "completing")),
        "12": ("RUNNING|N/A|UNLIMITED|n1|None", (running, "running", ("n1",), False)),
        "13": ("SIGNALING|N/A|59:00|n1|None", (running, "running", ("n1",), False)),
        "14": ("CANCELLED|N/A|59:00||None", (ended, "cancelled")),
        "15": ("PENDING|N/A|1:00:00||Priority", (queued, "Priority")),
        "16": ("RUNNING|2026-11-23T04:26:33|59:00|n1|None", (AllocationState.PREEMPTED, "preempted", ("n1",), False)),
        "17": ("PENDING|N/A|1:00||None", (queued, "")),
        "18": ("RUNNING|N/A|1:30|n1|None", (running, "its time limit is near", ("n1",), False)),
        "19": ("FAILED|N/A|59:59|n7|NonZeroExitCode", (ended, "NonZeroExitCode", ("n7",), True)),
        "20": ("COMPLETING|N/A|59:59|n7|NonZeroExitCode", (ended, "NonZeroExitCode", ("n7",), True)),
    }
    commands = Commands(*(row(job_id, columns, f"b{job_id}") for job_id, (columns, _) in expected.items()))
    seen = boosters(spec, commands).seen({"b7", "b8", "b9", "b19"})
    found = {f"b{job_id}": SeenAllocation(*each) for job_id, (_, each) in expected.items()}
    assert seen == {"b7": SeenAllocation(ended, "Slurm has forgotten it")} | found
    assert len(commands.asked) == 1


def test_one_that_failed_has_the_last_line_of_its_log_as_its_reason(spec: JobSpec, tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "booster-8.log").write_text("slurm_script: line 18: python3: Permission denied\n\n")
    rows = Commands(row("8", "FAILED|N/A|59:59|n7|NonZeroExitCode", "b1"))
    seen = SlurmBoosters(spec, tmp_path, 7, Slurm(run=rows)).seen({"b1"})["b1"]
    assert seen.reason.endswith("log/booster-8.log ends with: slurm_script: line 18: python3: Permission denied")


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ("RUNNING|2026-11-23T04:26:33|59:00|n1|None", "preempted"),
        ("COMPLETING|N/A|59:00|n1|None", "cancelled"),
        ("RUNNING|N/A|1:59|n1|None", "its time limit is near"),
        ("COMPLETING|N/A|0:00|n1|TimeLimit", "its time limit is near"),
        ("RUNNING|N/A|UNLIMITED|n1|None", "ended by a signal"),
    ],
)
def test_a_sigterm_is_a_preemption_only_if_slurm_says_so(spec: JobSpec, columns: str, why: str) -> None:
    assert boosters(spec, Commands(row("8", columns, "b1"))).why_terminated("b1") == why


class Base:
    """Slurm's word on the job that the run started with."""

    def __init__(self, state: str | None, restarts: int = 2) -> None:
        self._answer = None if state is None else (state, restarts)

    def __call__(self, argv: Sequence[str], **_: Any) -> Result:
        if self._answer is None:
            stderr = "slurm_load_jobs error: Invalid job id specified"
            raise CommandError(
                Result(argv=tuple(argv), returncode=1, stdout="", stderr=stderr, seconds=0.0), "exit code 1"
            )
        return Scontrol(self._answer)(argv)


@pytest.mark.parametrize(
    ("base", "is_over"),
    [
        (Base("RUNNING"), False),
        (Base("RUNNING", restarts=3), True),
        (Base("PENDING", restarts=3), True),
        (Base("COMPLETING"), True),
        (Base("CANCELLED"), True),
        (Base(None), True),
        (Scontrol(None), False),
    ],
    ids=["runs", "runs again", "requeued", "ends", "cancelled", "forgotten", "Slurm does not answer"],
)
def test_one_whose_base_is_gone_when_it_starts_ends_well_at_once(base: Any, is_over: bool) -> None:
    env = {"HOLDFAST_RUN_ID": "slurm-big-7", "HOLDFAST_RESTART_COUNT": "2"}
    assert booster.base_is_over(Slurm(run=base), env) is is_over


def test_it_runs_a_runner_on_each_of_its_nodes_in_the_jobs_container() -> None:
    job = JobEnvironment.from_env(ENV | {"SLURM_JOB_ID": "8", "SLURM_JOB_NODELIST": "n[4-5]"})
    argv = booster.runners_srun(job, Path("/jobs/7"), ["--container-image=/i.sqsh"])
    wanted = {"--jobid=8", "--nodelist=n4,n5", "--nodes=2", "--container-image=/i.sqsh", "--mpi=none", "--no-kill"}
    assert wanted <= {*argv} and argv[-2:] == ["-m", "launcher.runner"]
    assert "--output=/jobs/7/log/runner-%N.log" in argv


def test_its_runner_keeps_the_runs_memory_under_its_own_jobs_name() -> None:
    """The hooks of its node make and free the memory of the job there."""
    env = {"HOLDFAST_RUN_ID": "slurm-big-7", "HOLDFAST_JOB_DIR": "/jobs/7", "HOLDFAST_SUPERVISOR": "n1:1"}
    env |= ENV | {"HOLDFAST_RESTART_COUNT": "2", "SLURMD_NODENAME": "n4"}
    base = RunnerConfig.from_env(env | {"SLURM_JOB_ID": "7"})
    assert (base.allocation, base.is_booster, base.ram_dir.name) == ("7", False, "slurm-big-7")
    further = RunnerConfig.from_env(env | {"SLURM_JOB_ID": "8", "HOLDFAST_ALLOCATION": "b1"})
    assert (further.allocation, further.is_booster, further.ram_dir.name) == ("b1", True, "slurm-big-8")
    assert further.run_id == "slurm-big-7"


def test_agents_of_several_jobs_are_one_world_by_mpirun_with_the_memory_of_each(
    spec: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[list[str], dict[str, str]]] = []

    class Recorded:
        @classmethod
        async def start(cls, argv: list[str], environment: dict[str, str], log_path: Path, **_: Any) -> None:
            started.append((argv, environment))

    monkeypatch.setattr(slurm_cluster, "ChildProcess", Recorded)
    monkeypatch.setattr(SlurmBoosters, "job_ids", lambda self, numbers: {"b1": "8"})
    job = cluster(spec, Scontrol())
    allocations = {"n1": "7", "n2": "7", "n4": "b1"}
    asyncio.run(job.start_agents(["n1", "n2"], {}, Path("/job/log/a.log"), allocations=allocations, holders=["n4"]))
    ((argv, environment),) = started
    assert argv[argv.index("--host") + 1] == "n1:1,n2:1,n4:1"
    assert environment["HOLDFAST_RAM_DIR"].endswith("/slurm-big-7")
    assert (
        json.loads(environment[Variable.JOBS])["nodes"]["8"] == ["n4"] and "/slurm-big-8" in environment[Variable.JOBS]
    )


@pytest.mark.parametrize("lacking", ["mpirun", "host"])
def test_a_job_that_is_to_grow_where_no_world_can_span_jobs_is_refused(
    spec: JobSpec, lacking: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if lacking == "mpirun":
        monkeypatch.setattr(slurm_cluster, "find_mpirun", lambda: None)
    else:
        image = {**JOB["slurm"], "container-image": "/i.sqsh"}
        spec = JobSpec.from_mapping({**JOB, "slurm": image}, tmp_path)
    with pytest.raises(UsageError, match="elastic: got sizes above `nodes`"):
        cluster(spec, Scontrol()).require_mpi()


def test_a_job_with_checkpoints_that_is_to_grow_in_containers_is_refused_at_submission(
    spec: JobSpec, tmp_path: Path
) -> None:
    saves = {"checkpoint": {"namespace": "gpt", "memory": {"every_steps": 10}}}
    image = {"slurm": {**JOB["slurm"], "container-image": "/i.sqsh"}}
    require_booster(JobSpec.from_mapping({**JOB, **saves}, tmp_path))
    require_booster(JobSpec.from_mapping({**JOB, **image}, tmp_path))
    with pytest.raises(UsageError, match=r"elastic: got sizes above nodes: 2 and slurm.container_\*, expected"):
        require_booster(JobSpec.from_mapping({**JOB, **saves, **image}, tmp_path))
