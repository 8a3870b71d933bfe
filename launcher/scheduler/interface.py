"""The interface between the launcher and a scheduler, beside `Cluster`: submission, status, requeue, liveness."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from launcher.history.status import JobStatus
from launcher.job.jobfile import JobSpec
from launcher.job.registry import KnownJob
from launcher.scheduler.cluster import Cluster

if TYPE_CHECKING:
    from lifecycle import Finding
    from slurm.command import CommandRunner


class JobPlace(NamedTuple):
    """The place of a process in a job of the scheduler.

    Attributes:
        job_id: the job's id for users.
        allocation: the id of its nodes' allocation, as `Cluster.allocation`.
        nodes: all its nodes.
        node: the node of this process.
        task: number of this task, from 0, among those that run the same program.
        gpus: the GPUs that the job has on this node, for `gpus_per_node: auto`.
    """

    job_id: str
    allocation: str
    nodes: tuple[str, ...]
    node: str
    task: int
    gpus: int = 0


class RunLiveness(NamedTuple):
    """Whether a run goes on. Neither is certain if the scheduler does not answer.

    Attributes:
        has_ended: whether it has certainly ended, with all its processes.
        is_running: whether it certainly goes on.
        words: the state of its job.
    """

    has_ended: bool
    is_running: bool
    words: str


class JobExecutor(Protocol):
    """Submits jobs, as an executor of submitit. Call order for each job: use, check, request; launch for like ones.

    Attributes:
        folder: the folder of jobs, with %j for the job's id.
        parameters: the options of update_parameters().
    """

    folder: Path
    parameters: dict[str, Any]

    def use(self, spec: JobSpec) -> None:
        """Take over the options of a job, beside those of update_parameters().

        Raises:
            UsageError: the scheduler cannot run the job.
        """

    def check(self, spec: JobSpec) -> None:
        """Check the job last passed to use() against the cluster, before anything is submitted.

        Raises:
            UsageError: the job cannot work.
        """

    def waits_for_others(self) -> bool:
        """Whether that job is to start after others have ended, or at a later time."""

    def request(self) -> str:
        """The options of that job for the scheduler. Jobs of one batch() with equal options are launched together."""

    def launch(self, specs: Sequence[JobSpec]) -> list[Any]:
        """Submit jobs with the options last passed to use(): makes each job's folder and writes its request.

        The scheduler runs `python -m launcher.submission.batch NAME FOLDER` for each, on one of its nodes.

        Returns:
            Their `SupervisedJob`s.

        Raises:
            LauncherError, UsageError: the scheduler refuses them or does not answer.
        """

    def cluster_name(self) -> str:
        """The cluster's name, if ids of jobs are unique only there; else ""."""


class Scheduler(Protocol):
    """A scheduler. Errors of all methods: LauncherError, or SlurmError from `slurm`.

    Attributes:
        name: its name, with which the ids of its runs begin.
        has_standbys: whether another node may take over from the supervisor; nodes outlive the supervisor's host then.
        is_this_machine: whether jobs run on the machine from which they are submitted.
        can_requeue: whether a job that ends for want of nodes starts again, as `Cluster.can_requeue`.
        poll_s: the least time between two questions about the same job, in seconds.
        step_variables: prefixes of variables that describe a process' place in a step. A standby does not get them.
    """

    name: str
    has_standbys: bool
    is_this_machine: bool
    can_requeue: bool
    poll_s: float
    step_variables: tuple[str, ...]

    def executor(self, folder: Path, **options: Any) -> JobExecutor:
        """Make the executor that submits to this scheduler."""

    def options(self, words: Sequence[str]) -> Mapping[str, str]:
        """The scheduler's own options in the words of `holdfast submit` that are not Holdfast's, by their long names.

        The executor gets the words themselves as `flags`, if there are any.

        Raises:
            UsageError: the scheduler takes no such words.
        """

    def preview(self, spec: JobSpec, folder: str, words: Sequence[str], *, asks: bool) -> tuple[str, str]:
        """A submission that is not made: what to print on stdout and on stderr.

        Args:
            spec, folder, words: of the submission.
            asks: whether to ask when and where the job would start, instead of the script.

        Raises:
            UsageError: there is none.
        """

    def findings(self, spec: JobSpec | None, run: CommandRunner) -> Iterable[Finding]:
        """What `holdfast doctor` sees of the scheduler itself: its settings and programs, for a job or in general."""

    def on_one_node(self, spec: JobSpec | None, findings: Sequence[Finding]) -> Sequence[str] | None:
        """The words before a command that runs it on one node for `holdfast doctor`; none on this machine.

        Args:
            spec: the job whose nodes are meant.
            findings: what findings() has found.

        Returns:
            The words; None if no command can be run, by the findings.
        """

    def cluster(self, spec: JobSpec, job_dir: Path) -> Cluster:
        """The nodes of the job that this process supervises.

        Raises:
            UsageError, SlurmError: this process is not in a job of the scheduler, or the job cannot run there.
        """

    def place(self, env: Mapping[str, str]) -> JobPlace | None:
        """The place of a process with this environment; None outside of the scheduler's jobs.

        If the scheduler sets no variables by which to know, always None. `Cluster.allocation` is its name then, and
        FOLDER of `launcher.submission.batch` has no %j.
        """

    def hand_back(self, env: Mapping[str, str], *, is_over: bool) -> None:
        """Requeue the job of this process, which has no supervisor and will get none. Every runner calls it.

        If the job is over or cannot be requeued, end it. Does nothing if another process has done so.

        Raises:
            NoAnswer: the scheduler does not answer at present.
        """

    def liveness(self, run_id: str, env: Mapping[str, str]) -> RunLiveness:
        """Whether a run of this scheduler still goes on. `env`: the environment of the process that asks."""

    def corrected(self, job: KnownJob, status: JobStatus) -> JobStatus:
        """The status of a job without an outcome, by its events and the scheduler: pending, cancelled, lost, ..."""

    def check_here(self, job: KnownJob) -> None:
        """Check that a job's id means that job here.

        Raises:
            UsageError: the job is another cluster's.
        """

    def leave_queue(self, job: KnownJob) -> bool:
        """Remove a job that has not started from the queue; whether it was there. A started job is left alone."""

    def cancel(self, job: KnownJob) -> None:
        """End a job at once. A running supervisor is asked first, because it writes the outcome."""
