"""What is asked of Slurm, and what its answers mean. The real cluster's tests are the flow tests."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ckpt.agent.process.launch import PYTHON, command
from launcher.clusters.slurm import cluster as slurm_cluster
from launcher.clusters.slurm import requeue
from launcher.clusters.slurm.cluster import SlurmCluster
from launcher.clusters.slurm.scheduler import SlurmScheduler
from launcher.errors import LauncherError, NoAnswer, TooFewNodes, UsageError
from launcher.job.elastic import Elastic
from launcher.job.jobfile import JobSpec
from launcher.scheduler import scheduler
from launcher.supervisor import supervise
from slurm import CommandError, Slurm, SlurmError
from slurm.command import Result

ENV = {
    "SLURM_JOB_ID": "7",
    "SLURM_CLUSTER_NAME": "big",
    "SLURM_JOB_PARTITION": "train",
    "SLURM_JOB_NODELIST": "n[1-3]",
    "SLURM_RESTART_COUNT": "2",
    "SLURMD_NODENAME": "n1",
}


@pytest.fixture
def spec(tmp_path: Path) -> JobSpec:
    (tmp_path / "s.py").touch()
    return JobSpec.from_mapping({"script": "s.py", "nodes": 2, "spares": 1}, tmp_path)


MPI_TYPES = "MPI plugin types are...\n\tnone\n\tpmi2\n\tpmix\nspecific pmix plugin versions available: pmix_v4\n"
PARTITION = "PartitionName=train Default=YES Nodes=n[1-5] PriorityTier=1 State=UP"


class Scontrol:
    """Answers `scontrol` from a list of states; None is a scontrol that fails. Text is printed as it is."""

    def __init__(self, *answers: tuple[str, int] | str | None) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[str, ...]] = []

    def __call__(self, argv: Sequence[str], **_: Any) -> Result:
        self.asked.append(tuple(argv))
        answer = self._answers.pop(0)
        state, restarts = ("", 0) if answer is None or isinstance(answer, str) else answer
        job = f"JobId=7 JobName=j UserId=u(1) JobState={state} Restarts={restarts} Partition=train "
        text = answer if isinstance(answer, str) else f"{job} ExcNodeList=n5 NodeList=n[1-3] NumNodes=3"
        result = Result(argv=tuple(argv), returncode=0, stdout=text, stderr="", seconds=0.0)
        if answer is None:
            raise CommandError(result, "signal SIGTERM")
        return result


def cluster(spec: JobSpec, scontrol: Scontrol) -> SlurmCluster:
    return SlurmCluster(spec, Path("/job"), slurm=Slurm(run=scontrol), env=ENV)


def test_run_is_named_after_the_job_and_knows_its_requeues(spec: JobSpec) -> None:
    found = cluster(spec, Scontrol())
    assert (found.run_id, found.nodes, found.restart_count) == ("slurm-big-7", ("n1", "n2", "n3"), 2)


def test_allocation_smaller_than_the_job_is_refused(spec: JobSpec) -> None:
    with pytest.raises(UsageError, match=r"got 2 nodes, expected 3 .*--nodes=3"):
        SlurmCluster(spec, Path("/job"), env=ENV | {"SLURM_JOB_NODELIST": "n[1-2]"})


def test_a_slurm_without_pmix_needs_mpirun_or_is_refused_at_once_in_its_own_words(
    spec: JobSpec, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    listed = "MPI plugin types are...\n\tnone\n\tpmi2\n"
    cluster(spec, Scontrol(listed)).require_mpi()
    (said,) = caplog.messages
    assert "no pmix (none, pmi2): " in said and said.endswith("/mpirun starts the checkpoint agents")
    cluster(spec, Scontrol("MPI plugin types are...\n\tnone\n\tpmix\n")).require_mpi()
    assert caplog.messages == [said]
    monkeypatch.setattr(slurm_cluster, "find_mpirun", lambda: None)
    with pytest.raises(UsageError, match="srun --mpi=list: got none, pmi2, expected pmix"):
        cluster(spec, Scontrol(listed)).require_mpi()
    cluster(spec, Scontrol(MPI_TYPES)).require_mpi()
    cluster(spec, Scontrol(None)).require_mpi()


def test_a_job_whose_agents_no_mpi_can_start_is_refused_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = JobSpec.from_mapping({"script": __file__, "checkpoint": {}}, tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(UsageError, match="mpirun: not found"):
        supervise(job, tmp_path / "job", "local")
    assert not (tmp_path / "job").exists()


def test_outside_a_job_the_error_says_so(spec: JobSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(SlurmError, match="SLURM_JOB_ID is not set"):
        scheduler("slurm").cluster(spec, Path("/job"))


@pytest.mark.parametrize(
    ("state", "restarts", "meaning"),
    [
        ("COMPLETING", 2, "cancel"),
        ("CANCELLED", 2, "cancel"),
        ("COMPLETING", 3, "requeue"),
        ("PENDING", 3, "requeue"),
        ("RUNNING", 2, "preempted"),
        ("SIGNALING", 2, "preempted"),
        ("SIGNALING", 3, "requeue"),
    ],
)
def test_state_of_the_job_tells_why_it_is_terminated(spec: JobSpec, state: str, restarts: int, meaning: str) -> None:
    assert cluster(spec, Scontrol((state, restarts))).why_terminated() == meaning


def test_a_job_that_ends_because_its_batch_script_was_killed_can_be_requeued(spec: JobSpec) -> None:
    record = "JobId=7 JobName=j UserId=u(1) JobState=COMPLETING Reason={} Restarts=2 Partition=train NumNodes=3"
    reasons = ("JobLaunchFailure", "NonZeroExitCode", "RaisedSignal:9(Killed)", "TimeLimit")
    why = [cluster(spec, Scontrol(record.format(reason))).why_terminated() for reason in reasons]
    assert why == ["batch_script_lost", "batch_script_lost", "batch_script_lost", "cancel"]


def test_scontrol_that_was_terminated_too_is_asked_again(spec: JobSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_cluster, "_ASK_AGAIN_S", 0.0)
    assert cluster(spec, Scontrol(None, None, ("COMPLETING", 2))).why_terminated() == "cancel"
    assert cluster(spec, Scontrol(*[None] * 5)).why_terminated() == "preempted"


def test_requeue_that_somebody_else_has_done_is_no_error(spec: JobSpec) -> None:
    scontrol = Scontrol(None, ("COMPLETING", 3))
    cluster(spec, scontrol).requeue()
    assert scontrol.asked[0] == ("scontrol", "requeue", "7")


def test_a_requeue_that_a_killed_slurmctld_has_forgotten_is_repeated(
    spec: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_cluster, "_ASK_AGAIN_S", 0.0)
    scontrol = Scontrol(("", 0), None, ("RUNNING", 2), ("", 0), ("COMPLETING", 2))
    requeued = cluster(spec, scontrol)
    requeued.requeue()
    requeued.await_requeue()
    assert [argv[1] for argv in scontrol.asked] == ["requeue", "show", "show", "requeue", "show"]


def test_a_job_that_slurm_has_started_again_is_not_requeued_from_its_earlier_start(spec: JobSpec) -> None:
    scontrol = Scontrol(("RUNNING", 3))
    cluster(spec, scontrol).await_requeue()
    assert len(scontrol.asked) == 1


def test_a_task_of_an_array_requeues_itself_alone(spec: JobSpec) -> None:
    scontrol = Scontrol("", "")
    env = ENV | {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}
    SlurmCluster(spec, Path("/job"), slurm=Slurm(run=scontrol), env=env).requeue()
    assert scontrol.asked == [("scontrol", "requeue", "7_3")]


def test_a_task_of_an_array_whose_batch_script_is_lost_ends_itself_alone(
    spec: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task that starts last has the array's own number, and scancel of that number ends all tasks."""
    monkeypatch.setattr(slurm_cluster, "_SCRIPT_ENDS_S", -1.0)
    scontrol = Scontrol(("RUNNING", 2), "")
    env = ENV | {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}
    SlurmCluster(spec, Path("/job"), slurm=Slurm(run=scontrol), env=env).end_job()
    assert scontrol.asked == [("scontrol", "show", "job", "--oneliner", "7_3"), ("scancel", "7_3")]


def test_more_names_than_linux_passes_to_a_program_are_refused_at_once(spec: JobSpec) -> None:
    name = "ip-10-123-032"
    with pytest.raises(UsageError, match="the names of its 9000 nodes take 170999 bytes"):
        SlurmCluster(spec, Path("/job"), env=ENV | {"SLURM_JOB_NODELIST": f"{name}-[1000-9999]"})


def test_nodes_that_are_out_are_excluded_beside_those_of_the_user(
    spec: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_cluster, "_ASK_AGAIN_S", 0.0)
    scontrol = Scontrol(("RUNNING", 2), PARTITION, "", None, "")
    cluster(spec, scontrol).requeue(["n2"])
    exclude = ("scontrol", "update", "JobId=7", "ExcNodeList=n[2,5]")
    assert scontrol.asked[2:] == [("scontrol", "requeue", "7"), exclude, exclude]


def test_requeue_that_could_never_start_is_refused(spec: JobSpec) -> None:
    scontrol = Scontrol(("RUNNING", 2), PARTITION)
    with pytest.raises(TooFewNodes, match=r"partition train has 1 nodes beside those .* \(n2,n3,n4\).*expected 2"):
        cluster(spec, scontrol).requeue(["n2", "n3", "n4"])
    assert ("scontrol", "requeue", "7") not in scontrol.asked


def test_an_elastic_job_goes_without_nodes_that_are_out_where_there_are_no_others(
    spec: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    scontrol = Scontrol(("RUNNING", 2), PARTITION, "", "")
    cluster(dataclasses.replace(spec, elastic=Elastic(min_nodes=1)), scontrol).requeue(["n2", "n3"])
    assert scontrol.asked[3] == ("scontrol", "update", "JobId=7", "ExcNodeList=n[2-3,5]")


def test_an_elastic_job_takes_the_nodes_that_slurm_gave(spec: JobSpec) -> None:
    env = ENV | {"SLURM_JOB_NODELIST": "n2"}
    assert SlurmCluster(dataclasses.replace(spec, elastic=Elastic(min_nodes=1)), Path("/job"), env=env).nodes == ("n2",)


def test_a_job_that_needs_more_nodes_than_are_good_excludes_all_but_what_fills_the_places_of_spares(
    spec: JobSpec,
) -> None:
    """Two nodes and a spare, five in the partition: the two that remain beside n5 train, and one bad node idles."""
    states = [("n1", "IDLE"), ("n2", "DOWN*"), ("n3", "IDLE"), ("n4", "IDLE+DRAIN"), ("n5", "IDLE")]
    nodes = "\n".join(node_line(name, state, 1) for name, state in states)
    for out, excluded in ((["n2", "n3"], "n[2,5]"), (["n2", "n4"], "n[4-5]"), (["n4", "n2"], "n[2,5]")):
        scontrol = Scontrol(("RUNNING", 2), PARTITION, nodes, "", "")
        cluster(spec, scontrol).requeue(out)
        assert scontrol.asked[3:] == [
            ("scontrol", "requeue", "7"),
            ("scontrol", "update", "JobId=7", f"ExcNodeList={excluded}"),
        ]


def test_requeue_goes_ahead_where_slurm_does_not_tell_who_is_excluded(
    spec: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_cluster, "_ASK_AGAIN_S", 0.0)
    scontrol = Scontrol(*[None] * 5, "")
    cluster(spec, scontrol).requeue(["n2"])
    assert scontrol.asked[-1] == ("scontrol", "requeue", "7")


def test_requeue_that_slurm_refuses_again_and_again_is_an_error(spec: JobSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requeue, "ASK_AGAIN_S", 0.0)
    with pytest.raises(SlurmError):
        cluster(spec, Scontrol(*[None, ("RUNNING", 2)] * 5)).requeue()


def test_requeue_that_a_slurmctld_refuses_as_it_starts_is_asked_for_again(
    spec: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requeue, "ASK_AGAIN_S", 0.0)
    scontrol = Scontrol(None, ("RUNNING", 2), "")
    cluster(spec, scontrol).requeue()
    assert [argv[1] for argv in scontrol.asked] == ["requeue", "show", "requeue"]


def test_a_slurmctld_that_does_not_answer_has_not_refused_the_requeue(spec: JobSpec) -> None:
    with pytest.raises(NoAnswer, match="scontrol requeue 7"):
        cluster(spec, Scontrol(None, None)).requeue()


def test_steps_name_their_nodes_and_survive_the_loss_of_one(spec: JobSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[list[str], dict[str, str]]] = []

    class Recorded:
        @classmethod
        async def start(
            cls, argv: list[str], environment: dict[str, str], log_path: Path, *, outlives_us: bool
        ) -> None:
            assert outlives_us  # or the step ends with the supervisor, and nobody could take over
            started.append((argv, environment))

    monkeypatch.setattr(slurm_cluster, "ChildProcess", Recorded)
    job = cluster(spec, Scontrol(MPI_TYPES))
    asyncio.run(job.start_runners(["n1", "n2", "n3"], {"A": "1"}))
    asyncio.run(job.start_agents(["n1", "n3"], {"HOLDFAST_ATTEMPT": "1"}, Path("/job/log/agents.log"), allocations={}))
    (runners, _), (agents, environment) = started
    for argv, nodes, count in ((runners, "n1,n2,n3", 3), (agents, "n1,n3", 2)):
        assert argv[0] == "env" and "--unset=SLURM_GPUS_PER_NODE" in argv[: argv.index("srun")]
        wanted = {f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1", f"--nodelist={nodes}", "--jobid=7"}
        assert wanted | {"--no-kill", "--overlap", "--export=ALL"} <= set(argv)
    assert "--unset=SLURM_JOB_NODELIST" in agents[: agents.index("srun")], "so srun sets it to the step's nodes"
    assert "--gres=none" in agents and not [option for option in runners if option.startswith(("--gres", "--gpus"))]
    assert "--kill-on-bad-exit=0" in runners and "--kill-on-bad-exit=1" in agents
    assert "--unset=SLURM_JOB_NODELIST" not in runners, "workers see the job's"
    assert "--mpi=none" in runners and runners[-2:] == ["-m", "launcher.runner"]
    assert "--mpi=pmix" in agents and environment["HOLDFAST_RAM_DIR"].endswith("/slurm-big-7")


def test_steps_run_in_the_jobs_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole command lines: pyxis' options on both steps, the job's folder mounted."""
    started: list[list[str]] = []

    class Recorded:
        @classmethod
        async def start(
            cls, argv: list[str], environment: dict[str, str], log_path: Path, *, outlives_us: bool
        ) -> None:
            assert outlives_us  # or the step ends with the supervisor, and nobody could take over
            started.append(argv)

    monkeypatch.setattr(slurm_cluster, "ChildProcess", Recorded)
    (tmp_path / "s.py").touch()
    image = {"container_image": "/images/torch.sqsh", "container_writable": True, "partition": "train"}
    spec = JobSpec.from_mapping({"script": "s.py", "nodes": 3, "slurm": image}, tmp_path)
    job = cluster(spec, Scontrol(MPI_TYPES))
    asyncio.run(job.start_runners(["n1", "n2", "n3"], {}))
    asyncio.run(job.start_agents(["n1", "n3"], {}, Path("/job/log/agents.log"), allocations={}))
    common = (
        "--no-kill --kill-on-bad-exit=0 --overlap --export=ALL --cpu-bind=none --distribution=cyclic --wait=0 --quiet"
    )
    container = "--container-image=/images/torch.sqsh --container-writable --container-mounts=/job:/job"
    python = " ".join(PYTHON)
    unmoved = """sh -c trap "" USR1 USR2; :; exec "$@" sh"""
    assert [" ".join(argv[argv.index("srun") :]) for argv in started] == [
        f"srun --jobid=7 --nodes=3 --ntasks=3 --ntasks-per-node=1 --nodelist=n1,n2,n3 {common} {container} --mpi=none "
        f"--output=/job/log/runner-%N.log --open-mode=append {unmoved} {python} -m launcher.runner",
        f"srun --jobid=7 --nodes=2 --ntasks=2 --ntasks-per-node=1 --nodelist=n1,n3 {common} {container} --mpi=pmix "
        f"--kill-on-bad-exit=1 --gres=none {' '.join(command(from_template=True))}",
    ]


PORT = "SlurmdPort              = 6818\n"


def up_for(seconds: int) -> str:
    as_of, started = "Configuration data as of 2026-11-22T19:07:{:02}", "BOOT_TIME               = 2026-11-22T19:07:04"
    return "\n".join((as_of.format(4 + seconds), started, ""))


def node_line(name: str, state: str, port: int) -> str:
    return (
        f"NodeName={name} CPUTot=8 NodeAddr=127.0.0.1 Port={port} State={state} Partitions=train SlurmdStartTime=None "
        "Reason=Not responding"
    )


def test_nodes_that_can_be_given_nothing_are_told_by_what_slurm_and_they_themselves_say(spec: JobSpec) -> None:
    with socket.create_server(("127.0.0.1", 0)) as slurmd, socket.create_server(("127.0.0.1", 0)) as gone:
        up, closed = slurmd.getsockname()[1], gone.getsockname()[1]
        gone.close()
        nodes = [("n1", "MIXED*", up), ("n2", "MIXED", closed), ("n3", "DOWN*", up), ("n4", "MIXED", up)]
        lines = "\n".join(node_line(*node) for node in nodes)
        scontrol = Scontrol(("RUNNING", 2), lines, PORT)
        found = cluster(spec, scontrol).unusable(["n1", "n2", "n3", "n4"], {})
    assert found.keys() == {"n2", "n3", "n4"}  # n4 is none of the job's any more
    assert "slurmd does not answer" in found["n2"] and "DOWN+NOT_RESPONDING: Not responding" in found["n3"]


def test_a_batch_host_that_reaches_no_other_node_looks_again(spec: JobSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be cut off itself. n2 and n3 answer its third look."""
    looks = Counter[int]()

    def connection_error(address: str, port: int) -> OSError | None:
        looks[port] += 1
        return None if port == 1 or looks[port] == 3 else TimeoutError()

    monkeypatch.setattr(slurm_cluster, "connection_error", connection_error)
    monkeypatch.setattr(slurm_cluster, "_ASK_AGAIN_S", 0.0)
    lines = "\n".join(node_line(f"n{port}", "MIXED", port) for port in (1, 2, 3))
    answers = (("RUNNING", 2), lines, PORT)
    assert cluster(spec, Scontrol(*answers * 3, up_for(6))).unusable(["n1", "n2", "n3"], {}) == {}
    assert cluster(spec, Scontrol(*answers)).unusable(["n1", "n2"], {}).keys() == {"n2"}  # one node says nothing of us
    with monkeypatch.context() as patch:
        patch.setattr(slurm_cluster, "CUT_OFF_S", -1.0)
        assert cluster(spec, Scontrol(*answers)).unusable(["n1", "n2", "n3"], {}).keys() == {"n2", "n3"}
    # hosts that refuse a connection are reached: it is their slurmd that is gone
    monkeypatch.setattr(slurm_cluster, "connection_error", lambda *_: ConnectionRefusedError())
    assert cluster(spec, Scontrol(*answers)).unusable(["n1", "n2", "n3"], {}).keys() == {"n1", "n2", "n3"}


def test_nodes_that_a_starting_controller_has_not_heard_of_can_be_given_work(spec: JobSpec) -> None:
    with socket.create_server(("127.0.0.1", 0)) as slurmd:
        lines = "\n".join(node_line(name, "UNKNOWN*", slurmd.getsockname()[1]) for name in ("n1", "n2"))
        scontrol = Scontrol(("RUNNING", 2), lines, PORT, up_for(6))
        assert cluster(spec, scontrol).unusable(["n1", "n2"], {}) == {}


def test_a_controller_that_has_just_started_is_waited_for_unless_nodes_are_gone(spec: JobSpec) -> None:
    with socket.create_server(("127.0.0.1", 0)) as slurmd:
        line = node_line("n1", "MIXED", slurmd.getsockname()[1])
        with pytest.raises(SlurmError, match="slurmctld started 4 s ago"):
            cluster(spec, Scontrol(("RUNNING", 2), line, PORT, up_for(4))).unusable(["n1"], {})
    found = cluster(spec, Scontrol(("RUNNING", 2), line, PORT, up_for(4))).unusable(["n1"], {})
    assert "slurmd does not answer" in found["n1"]


class TestMemoryOfNodesWithoutRunners:
    @pytest.fixture
    def memory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        here = tmp_path / "memory"
        here.mkdir()
        monkeypatch.setattr(slurm_cluster, "memory_of", lambda _: here)
        monkeypatch.delenv("HOLDFAST_MEMORY_DIR", raising=False)
        return here

    @pytest.fixture
    def steps(self, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
        started: list[list[str]] = []

        class Step:
            @classmethod
            async def start(cls, argv: list[str], environment: dict[str, str], log_path: Path) -> Step:
                started.append(argv)
                return cls()

            async def end(self, timeout_s: float) -> None:
                pass

        monkeypatch.setattr(slurm_cluster, "ChildProcess", Step)
        return started

    def test_its_own_nodes_is_freed_without_slurm(self, spec: JobSpec, memory: Path, steps: list[list[str]]) -> None:
        asyncio.run(cluster(spec, Scontrol()).forget(["n1"]))
        assert not memory.exists() and not steps

    def test_hooks_free_it_where_they_are(
        self, spec: JobSpec, memory: Path, steps: list[list[str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOLDFAST_MEMORY_DIR", str(memory))
        asyncio.run(cluster(spec, Scontrol()).forget(["n1"]))
        assert memory.exists() and not steps

    def test_a_slurmctld_that_has_just_started_is_waited_for(
        self, spec: JobSpec, memory: Path, steps: list[list[str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(slurm_cluster, "_ASK_AGAIN_S", 0.0)
        with socket.create_server(("127.0.0.1", 0)) as slurmd:
            line, job = node_line("n2", "MIXED", slurmd.getsockname()[1]), ("RUNNING", 2)
            scontrol = Scontrol(job, line, PORT, up_for(4), job, line, PORT, up_for(5))
            asyncio.run(cluster(spec, scontrol).forget(["n2"]))
        (step,) = steps
        assert "--nodelist=n2" in step and step[-1] == str(memory)
        assert memory.exists(), "it is that of n1"

    def test_a_slurmctld_that_does_not_answer_is_not_waited_for_long(
        self, spec: JobSpec, memory: Path, steps: list[list[str]], monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:  # fmt: skip
        monkeypatch.setattr(slurm_cluster, "_REGISTERING_S", 0.0)
        asyncio.run(cluster(spec, Scontrol(None)).forget(["n1", "n2"]))
        assert not memory.exists() and not steps
        assert "memory on n2 is not freed" in caplog.text


def test_a_node_that_srun_has_named_can_be_given_nothing(
    spec: JobSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its slurmd is stopped: the kernel takes our call in its place."""

    class Said:
        @classmethod
        async def start(cls, argv: list[str], environment: object, log_path: Path, *, outlives_us: bool) -> None:
            log_path.write_text("srun: error: Task launch for StepId=7.1 failed on node n2: Socket timed out\n")

    monkeypatch.setattr(slurm_cluster, "ChildProcess", Said)
    with socket.create_server(("127.0.0.1", 0)) as slurmd:
        lines = "\n".join(node_line(name, "MIXED", slurmd.getsockname()[1]) for name in ("n1", "n2"))
        job = cluster(spec, Scontrol(MPI_TYPES, ("RUNNING", 2), lines, PORT))
        asyncio.run(job.start_agents(["n1", "n2"], {}, tmp_path / "agents.log", allocations={}))
        assert job.unusable(["n1", "n2"], {}) == {"n2": "srun could start no process there: Socket timed out"}


def test_where_slurm_does_not_answer_nothing_is_known_of_the_nodes(spec: JobSpec) -> None:
    with pytest.raises(SlurmError):
        cluster(spec, Scontrol(None)).unusable(["n1"], {})


@pytest.mark.parametrize(
    ("state", "over"),
    [
        *((state, True) for state in ("CANCELLED", "COMPLETED", "FAILED", "TIMEOUT", "PREEMPTED")),
        *((state, False) for state in ("RUNNING", "COMPLETING", "PENDING", "NODE_FAIL")),  # a lost node may live on
    ],
)
def test_a_run_has_ended_when_slurm_says_so_of_its_job(state: str, over: bool) -> None:
    found = SlurmScheduler(Slurm(run=Scontrol((state, 0)))).liveness("slurm-big-7", ENV)
    assert (found.has_ended, found.words) == (over, f"job 7 is {state}")


def test_a_run_whose_job_slurm_has_forgotten_has_ended() -> None:
    def unknown(argv: Sequence[str], **_: Any) -> Result:
        stderr = "slurm_load_jobs error: Invalid job id specified"
        raise CommandError(Result(argv=tuple(argv), returncode=1, stdout="", stderr=stderr, seconds=0.0), "exit code 1")

    assert SlurmScheduler(Slurm(run=unknown)).liveness("slurm-big-7", ENV).has_ended


@pytest.mark.parametrize("run_id", ["slurm-other-7", "slurm-big-7.1", "slurm-big--7", "slurm-big-all", "local-x-7", ""])
def test_of_a_run_of_another_cluster_slurm_is_not_asked(run_id: str) -> None:
    run = Scontrol()
    assert not SlurmScheduler(Slurm(run=run)).liveness(run_id, ENV).has_ended
    assert not run.asked


def test_without_an_answer_of_slurm_no_run_has_ended() -> None:
    assert not SlurmScheduler(Slurm(run=Scontrol(None))).liveness("slurm-big-7", ENV).has_ended


def test_a_node_that_the_job_has_left_is_given_back(spec: JobSpec) -> None:
    scontrol = Scontrol(("RUNNING", 2), "")
    cluster(spec, scontrol).give_back("n3")
    assert scontrol.asked[1] == ("scontrol", "update", "JobId=7", "NodeList=n[1-2]")


def test_a_node_that_the_job_no_longer_has_is_not_given_back_again(spec: JobSpec) -> None:
    scontrol = Scontrol(("RUNNING", 2))
    cluster(spec, scontrol).give_back("n9")
    assert len(scontrol.asked) == 1


def test_the_node_of_the_batch_script_is_kept(spec: JobSpec) -> None:
    job = "JobId=7 JobName=j UserId=u(1) JobState=RUNNING Restarts=2 Partition=train"
    answer = f"{job} ExcNodeList=n5 NodeList=n[1-3] BatchHost=n1 NumNodes=3"
    scontrol = Scontrol(answer)
    with pytest.raises(LauncherError, match="batch script runs there"):
        cluster(spec, scontrol).give_back("n1")
    assert len(scontrol.asked) == 1


def test_drained_nodes_of_the_job_are_asked_for_at_once_and_told_in_words(spec: JobSpec) -> None:
    scontrol = Scontrol("n2|root|a broken fan\nn9|root|of another job\n")
    assert cluster(spec, scontrol).drained(["n1", "n2", "n3"]) == {"n2": "drained by root: a broken fan"}
    assert len(scontrol.asked) == 1
