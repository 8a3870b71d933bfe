"""The interface between the supervisor and the cluster on which its job runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from launcher.core.inputs import AllocationState
from launcher.core.stop_reasons import StopReason
from slurm import Topology


class AgentsHandle(Protocol):
    """The ckpt agents of one attempt: one MPI world, started together."""

    async def wait(self) -> None:
        """Returns when the launcher of the agents has ended, whatever its exit code."""

    async def kill(self) -> None:
        """End the launcher of the agents at once, without waiting for nodes that do not answer. Idempotent.

        The runners end agents that still run on their nodes.
        """


class SeenAllocation(NamedTuple):
    """What the scheduler says about a booster.

    Attributes:
        reason: why it waits, leaves or has ended.
        nodes: the nodes that it has or had.
        has_failed: whether it has ended with an error of its own.
    """

    state: AllocationState
    reason: str = ""
    nodes: tuple[str, ...] = ()
    has_failed: bool = False


class Cluster(Protocol):
    """The cluster on which a job runs. Call order: start_runners; release_runners when all are connected, or before
    they are started again; start_agents for each attempt; close at the end, then end_allocations.

    The job's own allocation is the base. Boosters are further allocations, which start their runners themselves. Here a
    booster's allocation is its number in the run. The scheduler's id of it is for users.

    A method that does not get the scheduler's answer raises SlurmError on Slurm, LauncherError elsewhere.

    Attributes:
        name: the scheduler's.
        run_id: the id of the run, the same through all requeues of the job.
        allocation: the id of the base.
        nodes: all nodes of the base in allocation order, including spares.
        restart_count: number of requeues of the job.
        listen_host: the address on which the supervisor's server listens.
        host: the address at which runners reach the supervisor.
        node: the node on which the supervisor runs; None if it runs on none of them.
        can_requeue: whether the job can get other nodes by `requeue`.
    """

    name: str
    run_id: str
    allocation: str
    nodes: tuple[str, ...]
    restart_count: int
    listen_host: str
    host: str
    node: str | None
    can_requeue: bool

    @property
    def topology(self) -> Topology:
        """The switches of the nodes."""

    def require_mpi(self) -> None:
        """Check, before the first attempt, that agents can be started here.

        Raises:
            UsageError: the cluster has no MPI to start agents.
        """

    async def start_runners(self, nodes: list[str], environment: Mapping[str, str]) -> None:
        """Start `python -m launcher.runner` on those of the given nodes on which a process can be started.

        Args:
            nodes: in allocation order.
            environment: added to the runners' environment, the same on every node.
        """

    async def runners_launched(self) -> None:
        """Return when the launcher of the runners (srun) has ended by itself, perhaps together with the runners."""

    def not_launched(self, nodes: Collection[str]) -> dict[str, str]:
        """The nodes, of the given ones, on which no runner or agent could be started, with the reasons.

        It covers the processes since start_runners() and those of the last start_agents(). The scheduler ends the
        processes on the other nodes that were started together with them.
        """

    async def release_runners(self) -> None:
        """End the launcher of the runners (srun), so that it cannot end the runners. They continue without it."""

    async def start_agents(
        self,
        nodes: list[str],
        environment: Mapping[str, str],
        log_path: Path,
        *,
        allocations: Mapping[str, str],
        holders: Sequence[str] = (),
    ) -> AgentsHandle:
        """Starts `python -m ckpt.agent` on the given nodes, as one MPI world.

        Args:
            nodes: the attempt's nodes in node-rank order.
            environment: added to the agents' environment, the same on every node.
            log_path: the file for their output.
            allocations: the allocation of each node.
            holders: further nodes of the world, after `nodes`, which hold checkpoints and do not train.
        """

    async def ask_allocation(
        self, allocation: str, nodes: int, exclude: Collection[str], environment: Mapping[str, str]
    ) -> str:
        """Ask the scheduler for a booster, unless it has one with this number. Its runners connect when it starts.

        Args:
            allocation: its number.
            nodes: number of nodes.
            exclude: nodes that the booster must not get.
            environment: added to the runners' environment.

        Returns:
            The scheduler's id of it.

        Raises:
            LauncherError, SlurmError, OSError: there is no booster, or the scheduler has not answered.
        """

    async def allocations(self, known: Collection[str]) -> dict[str, SeenAllocation]:
        """What the scheduler says about the boosters of this run, and about the known ones that it has forgotten.

        Raises:
            SlurmError: the scheduler does not answer.
        """

    async def why_terminated_booster(self, allocation: str) -> str:
        """The reason of a SIGTERM that a booster has just received: "preempted", "cancelled", or another in words.

        Raises:
            SlurmError: the scheduler does not answer.
        """

    async def end_allocation(self, allocation: str) -> None:
        """End a booster, or remove it from the queue. Idempotent. There may be none with this number.

        Raises:
            SlurmError: the scheduler refuses or does not answer.
        """

    async def end_allocations(self) -> None:
        """End all boosters of the run, including those that were never recorded. Logs those that cannot be ended."""

    def unusable(self, nodes: Collection[str], allocations: Mapping[str, str]) -> dict[str, str]:
        """The nodes, of the given ones, on which no process can be started any more, with the reasons.

        Called before runners are started, and when agents do not start. If no other node is reached, it looks again for
        a while, because this node may be cut off.

        Args:
            nodes: the nodes to check.
            allocations: the allocation of each node. Default: the base.

        Raises:
            SlurmError: the scheduler does not answer, so the state of the nodes is not known.
        """

    def drained(self, nodes: Collection[str]) -> dict[str, str]:
        """The nodes, of the given ones, that get no new job because somebody wants them, with the reasons in words.

        One request to the scheduler. Blocks.

        Raises:
            SlurmError: the scheduler does not answer.
        """

    def give_back(self, node: str) -> None:
        """Return a node of the base to the scheduler. What still runs there is killed. Blocks.

        Raises:
            LauncherError: the job cannot be without it.
            SlurmError: the scheduler refuses or does not answer.
        """

    def requeue(self, exclude: Collection[str] = ()) -> None:
        """Have the scheduler end this job and start it again.

        Args:
            exclude: nodes that the job must not get, now or after a later requeue.

        Raises:
            NoAnswer: the scheduler does not answer at present.
            LauncherError, SlurmError: the job could not be requeued, or too few nodes would remain to start it.
        """

    def why_terminated(self) -> StopReason:
        """The reason of a SIGTERM that has just arrived, or will arrive.

        Returns:
            CANCEL, REQUEUE, PREEMPTED or BATCH_SCRIPT_LOST.
        """

    def time_left_s(self) -> float | None:
        """Seconds until the scheduler ends the job; None if the job has no time limit. Blocks.

        Raises:
            SlurmError: the scheduler does not answer.
        """

    def adopt_agents(self) -> AgentsHandle:
        """A handle for the agents that an earlier supervisor has started. The runners end and kill these agents."""

    def let_go(self) -> None:
        """After a possible take-over: end the launchers started here, so that they cannot end runners or agents."""

    def await_requeue(self) -> None:
        """After a requeue, by whomever: wait until the scheduler ends this start of the job, and repeat a lost requeue.

        Blocks. The scheduler may end this process meanwhile.
        """

    def end_job(self) -> None:
        """After the outcome is written: make sure that the scheduler's job ends. Blocks. May end this process too."""

    async def close(self) -> None:
        """End the processes that were started here; kill those that do not end by themselves."""

    async def forget(self, nodes: Collection[str]) -> None:
        """After the outcome is written: remove the job's memory directories on nodes whose runners are gone.

        It takes some seconds at most. Directories on nodes that cannot be reached stay.
        """
