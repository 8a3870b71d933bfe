"""Boosters: the script that Slurm gets, what is asked of Slurm, and what its answers mean."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from test_clusters_slurm import ENV, Scontrol, cluster

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
#SBATCH --job-name=gpt-booster-of-7
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
    assert boosters(spec, Commands()).script(2, ["n1", "n2", "n3"]) == SCRIPT


def test_it_is_submitted_outside_of_our_own_step_with_the_runs_environment(
    spec: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = ("SLURM_JOB_ID", "SLURM_MEM_PER_NODE", "HOLDFAST_MEMORY_DIR", "SLURM_CONF", "MY_OWN")
    defaults = ("SBATCH_TIMELIMIT", "SBATCH_QOS", "SBATCH_REQUEUE", "SBATCH_GPUS_PER_NODE", "SBATCH_MEM_PER_CPU")
    for name in (*ours, *defaults, "SBATCH_ACCOUNT"):
        monkeypatch.setenv(name, "ours")
    commands = Commands()
    assert boosters(spec, commands).ask(2, ["n1", "n2", "n3"], {"HOLDFAST_RUN_ID": "slurm-big-7"}) == "8"
    assert commands.asked == [("sbatch", "--parsable")] and commands.script == SCRIPT
    assert commands.env["HOLDFAST_RUN_ID"] == "slurm-big-7" and commands.env["MY_OWN"] == "ours"
    assert commands.env["SLURM_CONF"] == "ours"
    assert not {"SLURM_JOB_ID", "SLURM_MEM_PER_NODE", "HOLDFAST_MEMORY_DIR", *defaults} & commands.env.keys()
    assert commands.env["SBATCH_ACCOUNT"] == "ours"


def test_how_all_of_the_run_stand_and_those_that_slurm_has_forgotten_is_one_question(spec: JobSpec) -> None:
    rows = ["8|PENDING|N/A|1:00:00||Resources|", "9|RUNNING|N/A|59:00|n[1-2]|None|",
            "10|PREEMPTED|2026-11-23T04:26:33|59:00|n1|None|", "11|COMPLETING|N/A|59:00||None|",
            "12|RUNNING|N/A|UNLIMITED|n1|None|", "13|SIGNALING|N/A|59:00|n1|None|", "14|CANCELLED|N/A|59:00||None|",
            "15|PENDING|N/A|1:00:00||Priority|", "17|PENDING|N/A|1:00||None|",
            "16|RUNNING|2026-11-23T04:26:33|59:00|n1|None|", "18|RUNNING|N/A|1:30|n1|None|",
            "19|FAILED|N/A|59:59|n7|NonZeroExitCode|", "20|COMPLETING|N/A|59:59|n7|NonZeroExitCode|"]  # fmt: skip
    commands = Commands(*rows)
    known = {"7", "8", "9", "10", "11", "13", "16", "17", "18", "19", "20"}
    seen = boosters(spec, commands).seen(known)
    queued, running, ended = AllocationState.QUEUED, AllocationState.RUNNING, AllocationState.ENDED
    expected: dict[str, tuple[Any, ...]] = {
        "7": (ended, "Slurm has forgotten it"),
        "8": (queued, "Resources"),
        "9": (running, "running", ("n1", "n2"), False),
        "10": (ended, "preempted", ("n1",), False),
        "11": (ended, "completing"),
        "13": (running, "running", ("n1",), False),
        "16": (AllocationState.PREEMPTED, "preempted", ("n1",), False),
        "17": (queued, ""),
        "18": (running, "its time limit is near", ("n1",), False),
        "19": (ended, "NonZeroExitCode", ("n7",), True),
        "20": (ended, "NonZeroExitCode", ("n7",), True),
        "12": (running, "running", ("n1",), False),
        "14": (ended, "cancelled"),
        "15": (queued, "Priority"),
    }
    assert seen == {number: SeenAllocation(*each) for number, each in expected.items()}
    (listed,) = commands.asked
    assert "--name=gpt-booster-of-7" in listed


def test_one_that_failed_has_the_last_line_of_its_log_as_its_reason(spec: JobSpec, tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "booster-8.log").write_text("slurm_script: line 18: python3: Permission denied\n\n")
    rows = Commands("8|FAILED|N/A|59:59|n7|NonZeroExitCode|")
    seen = SlurmBoosters(spec, tmp_path, 7, Slurm(run=rows)).seen({"8"})["8"]
    assert seen.reason.endswith("log/booster-8.log ends with: slurm_script: line 18: python3: Permission denied")


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("8|RUNNING|2026-11-23T04:26:33|59:00|n1|None|", "preempted"),
        ("8|COMPLETING|N/A|59:00|n1|None|", "cancelled"),
        ("8|RUNNING|N/A|1:59|n1|None|", "its time limit is near"),
        ("8|COMPLETING|N/A|0:00|n1|TimeLimit|", "its time limit is near"),
        ("8|RUNNING|N/A|UNLIMITED|n1|None|", "ended by a signal"),
    ],
)
def test_a_sigterm_is_a_preemption_only_if_slurm_says_so(spec: JobSpec, row: str, why: str) -> None:
    assert boosters(spec, Commands(row)).why_terminated("8") == why


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
    further = RunnerConfig.from_env(env | {"SLURM_JOB_ID": "8", "HOLDFAST_ALLOCATION": "8"})
    assert (further.allocation, further.is_booster, further.ram_dir.name) == ("8", True, "slurm-big-8")
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
    job = cluster(spec, Scontrol())
    allocations = {"n1": "7", "n2": "7", "n4": "8"}
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
