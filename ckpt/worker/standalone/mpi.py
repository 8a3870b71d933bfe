"""Starts agents for an MPI program, one on each of its nodes, in an MPI world of their own.

Rank 0 starts them: with srun inside a Slurm job, as a child process on a single node. One rank of each node stays
connected to its agent until `close`. The agents exit together once no process of the program is connected on any node
(ckpt.agent.idle_exit). So the agents of a killed program exit too.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ckpt.agent.process.launch import command, environment, outside_our_step, srun_world
from ckpt.agent.rpc.client import Monitor
from ckpt.config import CheckpointConfig, Place
from ckpt.errors import AgentError, CheckpointError, ConfigError
from ckpt.timeouts import WorkerDeadlines
from ckpt.worker.standalone.memory_dir import (
    LOG,
    lock_directory,
    memory_directory,
    our_owner,
    read_note,
    run_id,
    slurm_job,
    start_agents,
    write_note,
)

_POLL_S = 0.02
_LOOK_S = 0.5  # wait for the agent's socket between checks whether the start has failed
_GRACE_S = 30.0  # added to rank 0's deadline, before the other ranks stop waiting for it
_TAIL_LINES = 3

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Seat:
    """What each rank reports to all others: its node, its place there, and any error."""

    node: str
    local_rank: int
    ranks_on_node: int
    last_attempt: int = 0
    error: str = ""


class ProgramAgents:
    """The agents of an MPI program without a launcher. `place` is the node and the run of this process."""

    def __init__(self, comm: Any, config: CheckpointConfig, env: Mapping[str, str], deadlines: WorkerDeadlines) -> None:
        """Starts the agents and waits until all of them listen. Collective over `comm`: all ranks raise or none.

        Args:
            comm: mpi4py communicator of the program's ranks.
            env: this process's environment, with LOCAL_RANK and LOCAL_WORLD_SIZE.

        Raises:
            ConfigError: the ranks are not distributed evenly in node order, the program spans nodes outside a Slurm
                job, or the namespace is in use on a node.
            AgentError: the agents did not start. The message names the nodes and quotes the end of the log.
        """
        self._process: subprocess.Popen[bytes] | None = None
        self._monitor: Monitor | None = None
        self._lock = -1
        self._deadlines = deadlines
        try:
            self._join(comm, config, env)
        except BaseException:
            self._let_go()
            raise

    def close(self, *, together: bool = True) -> None:
        """Disconnects. The agents exit when all ranks have closed.

        Args:
            together: whether the other ranks are about to close too; then rank 0 waits for the agents to exit.
        """
        self._let_go()
        process, self._process = self._process, None
        if process is None or not together:
            return
        try:
            process.wait(timeout=self._deadlines.end_s)
        except subprocess.TimeoutExpired:
            log.warning(
                "the checkpoint agents have not ended within %g s: some rank has not closed its Checkpointer; "
                "they end when it does",
                self._deadlines.end_s,
            )

    def _let_go(self) -> None:
        monitor, self._monitor = self._monitor, None
        if monitor is not None:
            with contextlib.suppress(AgentError):
                while monitor.receive(0) is not None:
                    pass  # unread events in a closed socket would look like a fault to the agent
            monitor.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _join(self, comm: Any, config: CheckpointConfig, env: Mapping[str, str]) -> None:
        job, leads = slurm_job(env), int(env["LOCAL_RANK"]) == 0
        ram_dir, seat = self._sit_down(config, env, job, leads)
        seats = comm.allgather(seat)
        if errors := sorted({seat.error for seat in seats if seat.error}):
            raise ConfigError("; ".join(errors))
        nodes = nodes_of(seats)
        if len(nodes) > 1 and not job:
            raise ConfigError(
                f"Checkpointer: the communicator spans {', '.join(nodes)}, and this is not a Slurm job: an "
                "agent on each node needs one; run it by srun or mpirun in one (sbatch, salloc), or on one node"
            )
        attempt = max(int(time.time()), 1 + max(seat.last_attempt for seat in seats))
        run = _from_rank_0(comm, lambda: f"{attempt} {run_id(config, ram_dir, job, fresh=config.start_fresh)}").split(
            " ", 1
        )
        self.place = Place(
            run_id=run[1], attempt=int(run[0]), node=seat.node, nodes=nodes, ranks_per_node=seat.ranks_on_node,
            ram_dir=ram_dir, job=env.get("SLURM_JOB_ID", ""), owner=our_owner(),
        )  # fmt: skip
        if leads:
            with contextlib.suppress(OSError):  # memory may be full; the next attempt is then numbered by time of day
                write_note(self.place)
        self._meet(comm, config, leads)

    def _sit_down(self, config: CheckpointConfig, env: Mapping[str, str], job: str, leads: bool) -> tuple[Path, Seat]:
        """The node's first rank locks the memory directory.

        Errors are returned in the seat, so that all ranks see them.
        """
        # Slurm's name of the node, which srun needs; a process started by mpirun may lack it.
        node = env.get("SLURMD_NODENAME") or os.uname().nodename
        seat = Seat(node=node, local_rank=int(env["LOCAL_RANK"]), ranks_on_node=int(env["LOCAL_WORLD_SIZE"]))
        try:
            ram_dir = memory_directory(config, job)
            if leads:
                self._lock = lock_directory(ram_dir, config)
            return ram_dir, replace(seat, last_attempt=int(read_note(ram_dir).get("attempt", 0)))
        except (ConfigError, OSError, TypeError, ValueError) as error:
            return Path(), replace(seat, error=f"node {node}: {error}")

    def _meet(self, comm: Any, config: CheckpointConfig, leads: bool) -> None:
        """Rank 0 starts the agents; then the first rank of every node connects to its agent."""
        timeout_s = self._deadlines.connect_s

        def start() -> str:
            argv = command(until_unused=True)
            if len(self.place.nodes) > 1:
                argv = [*srun_world(self.place.job, self.place.nodes), *argv]
            self._process = start_agents(argv, self.place, config, outside_our_step(os.environ) | environment())
            self._monitor = self._connect_while_starting(timeout_s)
            return ""

        if comm.rank:
            _wait_quietly(comm, timeout_s + _GRACE_S)
        _from_rank_0(comm, start, arrive=True)
        error = ""
        if leads and comm.rank:
            try:  # the agents listen only after all of them have met
                self._monitor = Monitor.connect(self.place.ram_dir, self.place.attempt, timeout_s)
            except AgentError as failed:
                error = f"node {self.place.node}: {failed}"
        if errors := sorted(filter(None, comm.allgather(error))):
            raise AgentError("; ".join(errors))

    def _connect_while_starting(self, timeout_s: float) -> Monitor:
        place, process = self.place, self._process
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return Monitor.connect(place.ram_dir, place.attempt, _LOOK_S)
            except AgentError:
                ended = process is not None and process.poll() is not None
                if not ended and time.monotonic() < deadline:
                    continue
            what = "could not be started" if ended else f"do not listen within {timeout_s:g} s"
            raise AgentError(f"agents of {', '.join(place.nodes)} {what}: {_tail(place.ram_dir / LOG)}")


def nodes_of(seats: list[Seat]) -> tuple[str, ...]:
    """The nodes in the order of their ranks.

    Raises:
        ConfigError: the ranks are not numbered node after node with equal counts; agents rely on that.
    """
    nodes = tuple(dict.fromkeys(seat.node for seat in seats))
    counts = {node: sum(seat.node == node for seat in seats) for node in nodes}
    apart = next((seat for seat in seats if seat.ranks_on_node != counts[seat.node]), None)
    if apart is not None:
        raise ConfigError(
            f"Checkpointer: {counts[apart.node]} ranks say that they run on node {apart.node}, MPI finds "
            f"{apart.ranks_on_node} together there; give nodes and containers names of their own"
        )
    here = [(seat.node, seat.local_rank) for seat in seats]
    if here != [(node, rank) for node in nodes for rank in range(seats[0].ranks_on_node)]:
        found = ", ".join(f"{count} on {node}" for node, count in counts.items())
        raise ConfigError(
            f"Checkpointer: ranks {found}; expected the same number on each node and numbered node after node: "
            "srun --ntasks-per-node=N --distribution=block, mpirun --map-by ppr:N:node"
        )
    return nodes


def _from_rank_0(comm: Any, produce: Callable[[], str], *, arrive: bool = False) -> str:
    """The result of `produce` on rank 0, broadcast to all ranks; or its error.

    `arrive`: the others wait in _wait_quietly.
    """
    result, error = "", ""
    if comm.rank == 0:
        try:
            result = produce()
        except (CheckpointError, OSError) as failed:
            error = str(failed)
        if arrive:
            comm.Ibarrier().Wait()
    result, error = comm.bcast((result, error))
    if error:
        raise AgentError(error)
    return result


def _wait_quietly(comm: Any, timeout_s: float) -> None:
    """Waits for rank 0 without spinning, as a blocking MPI call would, on the cores where it starts agents."""
    arrived, deadline = comm.Ibarrier(), time.monotonic() + timeout_s
    while not arrived.Test():
        if time.monotonic() > deadline:
            raise AgentError(f"rank 0 has not started the checkpoint agents within {timeout_s:g} s")
        time.sleep(_POLL_S)


def _tail(path: Path) -> str:
    """The last lines of a log, joined into one line."""
    try:
        lines = path.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
    except OSError as error:
        return f"{path}: {error.strerror}"
    return f"{path} ends with: {' | '.join(lines)}" if lines else f"{path} is empty"
