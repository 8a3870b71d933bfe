"""What the supervisor needs of the place where it runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from launcher.core.inputs import AllocationState
from slurm import Topology


class AgentsHandle(Protocol):
    """The ckpt agents of one attempt: one MPI world, started together."""

    async def wait(self) -> None:
        """Returns when the launcher of the agents has ended, whatever its exit code."""

    async def kill(self) -> None:
        """Ends the launcher of the agents at once, without waiting for nodes that do not answer; idempotent.

        Agents that outlive it are ended by their nodes' runners.
        """


class Cluster(Protocol):
    """Where a job runs. Call order: start_runners; release_runners when they are there, or before they are started
    again; start_agents for each attempt; close at the end, then end_allocations.

    The job's own allocation is the base. Boosters are further ones, whose runners come by themselves.

    Attributes:
        name: "slurm" or "local".
        run_id: the run, the same through all requeues of the job.
        allocation: the base's id.
        nodes: all nodes of the base in allocation order, spares included.
        restart_count: how often the job was requeued.
        listen_host: where the supervisor's server listens.
        host: the address by which runners reach it.
        node: the node that it runs on; None where it runs beside them.
        can_requeue: whether `requeue` can bring the job other nodes.
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
        """Which of the nodes hang on one switch."""

    def require_mpi(self) -> None:
        """Says at once that no agents can be started here, rather than in every attempt.

        Raises:
            UsageError: the cluster has no MPI for them.
        """

    async def start_runners(self, nodes: list[str], environment: Mapping[str, str]) -> None:
        """Starts `python -m launcher.runner` on the given nodes, all that can be given a process.

        Args:
            nodes: in allocation order.
            environment: added to the runners' environment, the same on every node.
        """

    async def runners_launched(self) -> None:
        """Returns when what start_runners() has started them with has ended by itself, and they perhaps with it."""

    def not_launched(self, nodes: Collection[str]) -> dict[str, str]:
        """On which of these nodes no process could be started since start_runners(), or for the agents started last,
        with the reason. The scheduler then ends the others that were started together with it.
        """

    async def release_runners(self) -> None:
        """What started the runners shall not act on their nodes any more: those that are there go on without it."""

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
            log_path: takes their output.
            allocations: the allocation of each node.
            holders: nodes behind those in the world, which do not train.
        """

    async def ask_allocation(self, nodes: int, exclude: Collection[str], environment: Mapping[str, str]) -> str:
        """Asks the scheduler for a booster. Its runners come when it starts.

        Args:
            nodes: how many.
            exclude: nodes that it must not have.
            environment: added to the runners' environment.

        Returns:
            The allocation's id.

        Raises:
            LauncherError, SlurmError, OSError: there is none; or there is, and nobody knows its id.
        """

    async def allocations(self, known: Collection[str]) -> dict[str, tuple[AllocationState, str]]:
        """How boosters stand, and the scheduler's reason. Boosters of this run that are not among them are ended.

        Raises:
            SlurmError: the scheduler does not answer.
        """

    async def end_allocation(self, allocation: str) -> None:
        """Ends a booster, or takes it out of the queue; idempotent.

        Raises:
            SlurmError: the scheduler refuses or does not answer.
        """

    async def end_allocations(self) -> None:
        """Ends all boosters of the run, also those that nobody knows of. What cannot be ended is logged."""

    def unusable(self, nodes: Collection[str], allocations: Mapping[str, str]) -> dict[str, str]:
        """Which of the job's nodes can be given no process any more, with the reason. Asked before runners are
        started, and when agents do not come up.

        Args:
            nodes: those that are asked about.
            allocations: the allocation of each; by default the base.

        Raises:
            SlurmError: the scheduler itself does not answer; nothing is known of the nodes.
        """

    def requeue(self, exclude: Collection[str] = ()) -> None:
        """Has the scheduler end this job and start it again.

        Args:
            exclude: nodes that the job is not to be given again, now or after any later requeue.

        Raises:
            LauncherError, SlurmError: it could not be requeued, or too few nodes would be left to start it on.
        """

    def why_terminated(self) -> str:
        """What a SIGTERM that has just arrived means, or one that may be on its way.

        Returns:
            "cancel": the job is to end for good. "requeue": it is being ended to start again, or will be started
            again by whoever ends it. "preempted": it has to go, and starts again only if we requeue it.
            "batch_script_lost": the same, as it has no script any more.
        """

    def time_left_s(self) -> float | None:
        """Seconds until the scheduler ends the job; None where it has no time limit. Blocks.

        Raises:
            SlurmError: the scheduler does not answer.
        """

    def adopt_agents(self) -> AgentsHandle:
        """The agents that an earlier supervisor started; their runners ask them to end, and kill them."""

    def let_go(self) -> None:
        """Others may have taken over: what was started here must not act on their nodes any more; runners go on."""

    def end_job(self) -> None:
        """The outcome is written: sees to it that the scheduler lets the job end. Blocks; it may end us as well."""

    async def close(self, *, forget: bool) -> None:
        """Ends whatever was started here and still runs; kills what does not end by itself.

        Args:
            forget: the job is over: what is left of it in memory, and can be reached from here, goes too.
        """
