"""Starts an agent for a script on one node without a launcher (python, or torchrun on one node).

Local rank 0 starts the agent and writes a note into the memory directory. The other workers of the same launch wait for
the note. The agent exits with rank 0. MPI programs have ckpt.worker.standalone.mpi, which uses a communicator instead.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ckpt.agent.process.launch import command
from ckpt.agent.rpc.client import Monitor
from ckpt.config import CheckpointConfig, Place
from ckpt.errors import AgentError, ConfigError
from ckpt.timeouts import WorkerDeadlines
from ckpt.worker.link import Identity
from ckpt.worker.standalone.memory_dir import (
    lock_directory,
    memory_directory,
    our_owner,
    read_note,
    run_id,
    start_agents,
    write_note,
)

_POLL_S = 0.02

log = logging.getLogger(__name__)


class SoloAgent:
    """The agent of a run on one node without a launcher. `place` is the node and the run of this process."""

    def __init__(
        self, config: CheckpointConfig, identity: Identity, env: Mapping[str, str], deadlines: WorkerDeadlines
    ) -> None:
        """Starts the agent on local rank 0; other ranks wait for it.

        Raises:
            ConfigError: more than one node, or the namespace is in use on this node.
            AgentError: rank 0 did not start the agent in time.
        """
        ranks = int(env.get("LOCAL_WORLD_SIZE", "1"))
        if int(env.get("WORLD_SIZE", "1")) != ranks:
            raise ConfigError(
                "Checkpointer: several nodes need the launcher (holdfast run or submit): it starts an agent on each; "
                "or, in an MPI program, Checkpointer(comm)"
            )
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = -1
        self._deadlines = deadlines
        # All workers of a launch have the same parent and the same restart count.
        launch = f"{os.getppid()}.{env.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        ram_dir = memory_directory(config)
        if identity.local_rank == 0:
            self._lock = lock_directory(ram_dir, config)
            attempt = max(int(time.time()), read_note(ram_dir).get("attempt", 0) + 1)
            is_fresh = config.start_fresh and env.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
            self.place = _place(ram_dir, run_id(config, ram_dir, fresh=is_fresh), attempt, ranks)
            self._process = start_agents(command(), self.place, config, os.environ)
            write_note(self.place, launch)
        else:
            note = _wait_for_note(ram_dir, launch, deadlines.connect_s)
            self.place = _place(ram_dir, str(note["run_id"]), int(note["attempt"]), ranks)

    def close(self, *, together: bool = True) -> None:
        """Stops the agent, if this process has started it.

        Args:
            together: whether the other ranks are about to close too. Then the agent waits for them, and writes the
                newest step to the lower tiers.
        """
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(OSError):  # the directory may have been removed
            write_note(self.place)  # no other worker may use it any more
        try:
            with Monitor.connect(self.place.ram_dir, self.place.attempt, timeout_s=self._deadlines.end_s) as monitor:
                if together:
                    monitor.finish(self._deadlines.finish_s, workers_s=self._deadlines.end_s)
                else:
                    monitor.shutdown()
            process.wait(timeout=self._deadlines.end_s)
        except (AgentError, subprocess.TimeoutExpired) as error:
            log.warning("the checkpoint agent (pid %d) did not exit: %s; killing it", process.pid, error)
            process.kill()
            process.wait()
        os.close(self._lock)


def _place(ram_dir: Path, run: str, attempt: int, ranks: int) -> Place:
    node = os.uname().nodename
    return Place(
        run_id=run, attempt=attempt, node=node, nodes=(node,), ranks_per_node=ranks, ram_dir=ram_dir, owner=our_owner()
    )


def _wait_for_note(ram_dir: Path, launch: str, timeout_s: float) -> dict[str, Any]:
    deadline = time.monotonic() + timeout_s
    while (note := read_note(ram_dir)).get("launch") != launch or not Path(f"/proc/{note.get('pid')}").exists():
        if time.monotonic() > deadline:
            raise AgentError(f"{ram_dir}: local rank 0 has not started the checkpoint agent within {timeout_s:g} s")
        time.sleep(_POLL_S)
    return note
