"""One attempt, observed on this node: the events of the ckpt agent, and the steps on the workers' board."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ckpt import Board, CheckpointError, Monitor
from holdfast.base.environment import Variable
from holdfast.base.processes import environment_of, state_of
from launcher.core.hang import WorkSection

log = logging.getLogger(__name__)

AGENT_START_TIMEOUT_S = 60.0
# Longer than srun takes to name a node that does not answer: 20 s with the default MessageTimeout on 22.05, 40 s on
# 24.11. If agents were given up before, the next attempt would have the same nodes, and the job would then be requeued.
AGENT_RESTART_TIMEOUT_S = 45.0
_AS_LONG_AGAIN = 10  # times the previous duration
LOOK_S = 0.5
AGENT_STOPPED_S = 3.0  # if the kernel says that it is stopped
AGENT_SILENCE_S = 60.0  # it may be making room for a large shard
_CONNECT_POLL_S = 0.05
_BOARD_POLL_S = 0.05

# every agent reports these; the supervisor needs them once
_FROM_NODE_RANK_0 = ("restore_plan", "rejoined", "commit", "stop_agreed", "loaded")

Send = Callable[[dict[str, Any]], None]


class Patience:
    """The time that a node's agents may take to start. It outlives the attempts.

    Agents may fail to meet in MPI_Init (see `ckpt.agent.rpc.transport`). If agents have started before, new ones
    replace them sooner.

    Attributes:
        limit_s: the limit for the next agents.
    """

    def __init__(self) -> None:
        self.limit_s = AGENT_START_TIMEOUT_S

    def came_up(self, took_s: float) -> None:
        self.limit_s = min(AGENT_START_TIMEOUT_S, max(AGENT_RESTART_TIMEOUT_S, _AS_LONG_AGAIN * took_s))

    def missed(self) -> None:
        """Raises the limit, because everything may have become slow."""
        self.limit_s = AGENT_START_TIMEOUT_S


class Watch:
    """Follows one attempt for the supervisor.

    Args:
        attempt: its number.
        node_rank: this node's rank in it.
        ram_dir: the node's memory directory.
        send: takes the messages "monitor", "agent_lost", "agent_ended" and "first_step".

    Attributes:
        generation: that of the followed agents; above 0 for replacements.
    """

    def __init__(self, attempt: int, node_rank: int, ram_dir: Path, send: Send, patience: Patience) -> None:
        self.attempt = attempt
        self._patience = patience
        self._node_rank = node_rank
        self._ram_dir = ram_dir
        self._send = send
        self._monitor: Monitor | None = None
        self._board: Board | None = None
        self._restored: int | None = None  # the step from which this attempt continued
        self._stop_wanted = self._released = self._finishes = False
        self._lower_s: float | None = None  # of the wanted stop
        self._is_joining = True
        self._unanswered = 0  # number of looks since an unanswered request to the agent
        self.generation = 0

    async def run(self) -> None:
        """Connects to the agent and follows it; then reports the first step and returns. Cancel it at any time."""
        if await self._join():
            await self._report_first_step()

    async def rejoin(self, generation: int) -> None:
        """Follows the agent that replaces the node's lost one. Cancel it at any time."""
        self.generation = generation
        await self._join()

    async def _join(self) -> bool:
        """Connects, and sends requests that were made meanwhile. False if the agent did not start."""
        self._is_joining = True
        try:
            self._monitor = await self._connect()
            self._unanswered = 0
            self._board = self._board or Board.open(self._ram_dir)  # the first agent has cleared it
            asyncio.get_running_loop().add_reader(self._monitor.fileno(), self._read_monitor)
        except (CheckpointError, OSError) as error:
            self._lose_agent(str(error))
            return False
        finally:
            self._is_joining = False
        if self._stop_wanted:
            self._ask(lambda monitor: monitor.stop(self._lower_s))
        if self._released:
            self._let_agent_go()
        return True

    def look_after_agent(self) -> None:
        """Checks whether a connected agent still responds. Call it every LOOK_S.

        It counts calls, so that a pause of this process is not taken for one of the agent.
        """
        monitor = self._monitor
        if monitor is None:
            return
        is_stopped = state_of(monitor.agent_pid) == "T"
        silent_s = self._unanswered * LOOK_S
        if silent_s >= (AGENT_STOPPED_S if is_stopped else AGENT_SILENCE_S):
            how = "is stopped" if is_stopped else "does not answer"
            self._lose_agent(f"its process {monitor.agent_pid} {how}, silent for {silent_s:g} s")
            return
        if not self._unanswered:
            self._ask(lambda monitor: monitor.ping())
        self._unanswered += 1

    def step(self) -> int | None:
        """The newest step that a worker of this attempt has finished; None if no step is known."""
        if (board := self._followed()) is None:
            return None
        return max((row.step for row in board.rows() if row.attempt == self.attempt), default=None)

    def slowest(self) -> int | None:
        """The step of the slowest worker, of those that have reported a step and will report another."""
        if (board := self._followed()) is None:
            return None
        rows = (row for row in board.rows() if row.attempt == self.attempt and not row.left)
        return min((row.step for row in rows if state_of(row.pid) not in ("", "Z", "X")), default=None)

    def section(self) -> WorkSection:
        """What the workers do: the section with the longest limit that any of them is in."""
        rows = board.rows() if (board := self._followed()) is not None else []
        told = (WorkSection(row.section) for row in rows if row.attempt == self.attempt and not row.left)
        return max(told, key=list(WorkSection).index, default=WorkSection.STEP)

    def boundaries(self) -> dict[int, int]:
        """Number of step boundaries passed in this attempt, by rank, for ranks that report them."""
        rows = board.rows() if (board := self._followed()) is not None else []
        return {row.rank: row.boundary for row in rows if row.attempt == self.attempt}

    def stop(self, lower_s: float | None) -> None:
        """Makes all ranks stop at one step boundary, through the agent; `lower_s` as in Monitor.stop()."""
        self._stop_wanted, self._lower_s = True, lower_s
        self._ask(lambda monitor: monitor.stop(lower_s))

    def release_agent(self, *, finish: bool) -> None:
        """The ranks have ended, so the agent may exit. `finish`: it first writes the newest step to the lower tiers."""
        self._released, self._finishes = True, finish
        if self._monitor is None and not self._is_joining:
            self._send({"op": "agent_ended", "attempt": self.attempt})  # it was lost
        self._let_agent_go()

    def _let_agent_go(self) -> None:
        """Its connection is followed until it ends, because its last writes are events too."""
        self._ask(lambda monitor: monitor.release() if self._finishes else monitor.shutdown())

    def leave_agent(self) -> None:
        """Stops following the agent. The board can still be read."""
        if self._monitor is not None:
            with contextlib.suppress(OSError, ValueError):
                asyncio.get_running_loop().remove_reader(self._monitor.fileno())
            self._monitor.close()
            self._monitor = None

    def close(self) -> None:
        self.leave_agent()
        if self._board is not None:
            self._board.close()
            self._board = None

    async def _connect(self) -> Monitor:
        since_s = time.monotonic()
        while True:
            try:
                monitor = Monitor.connect(self._ram_dir, self.attempt, 0.0)
                if not self._is_followed(monitor.agent_pid):
                    monitor.close()
                    raise CheckpointError(f"the agent before generation {self.generation} does not end")
                self._patience.came_up(time.monotonic() - since_s)
                return monitor
            except CheckpointError as error:
                limit_s = self._patience.limit_s
                if time.monotonic() > since_s + limit_s:
                    self._patience.missed()
                    raise CheckpointError(f"{error}; tried for {limit_s:g} s") from None
            await asyncio.sleep(_CONNECT_POLL_S)

    def _is_followed(self, pid: int) -> bool:
        """Whether this is the agent of the followed generation, as far as can be seen. A killed agent still listens for
        a moment without an environment, because the kernel frees a process's memory before its files.
        """
        return not pid or environment_of(pid).get(Variable.GENERATION, "0") == str(self.generation)

    def _read_monitor(self) -> None:
        monitor = self._monitor
        try:
            while monitor is not None and (event := monitor.receive(0.0)) is not None:
                if event.get("event") == "pong":
                    self._unanswered = 0
                    continue
                if event.get("event") == "restore_plan":
                    self._restored = event.get("step") or 0
                if self._node_rank == 0 or event.get("event") not in _FROM_NODE_RANK_0:
                    self._send({"op": "monitor", "attempt": self.attempt, "event": event})
        except CheckpointError as error:
            self._lose_agent(str(error))

    async def _report_first_step(self) -> None:
        while (board := self._followed()) is not None:
            first = None
            if self._restored is not None:
                rows = (row for row in board.rows() if row.attempt == self.attempt and row.step > self._restored)
                first = min(rows, key=lambda row: row.time_s, default=None)
            if first is not None:
                self._send({"op": "first_step", "attempt": self.attempt, "step": first.step, "time": first.time_s})
                return
            await asyncio.sleep(_BOARD_POLL_S)

    def _followed(self) -> Board | None:
        """The board to which the workers write. The agent makes another one after it was removed."""
        if self._board is not None:
            self._board.follow()
        return self._board

    def _ask(self, request: Callable[[Monitor], None]) -> None:
        if self._monitor is not None:
            try:
                request(self._monitor)
            except CheckpointError as error:
                self._lose_agent(str(error))

    def _lose_agent(self, reason: str) -> None:
        self.leave_agent()
        if self._released:
            self._send({"op": "agent_ended", "attempt": self.attempt})
        else:
            log.warning("attempt %s: checkpoint agent lost: %s", self.attempt, reason)
            lost = {"op": "agent_lost", "attempt": self.attempt, "generation": self.generation}
            self._send(lost | {"reason": reason})
