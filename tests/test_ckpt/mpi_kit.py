"""Real agent processes, alone or under mpirun, each node with a memory directory of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent_kit import LINE, NAMESPACE, RUN_ID, content, layout, with_step
from waiting import until

from ckpt.agent.process.launch import command, environment, mpirun_options
from ckpt.agent.rpc.client import AgentClient, Monitor
from ckpt.errors import AgentError
from holdfast.base.messages import plain

WAIT_S = 30.0
_sessions = tempfile.TemporaryDirectory(prefix="mpi-")


def session_options() -> list[str]:
    """A place of its own for what an mpirun keeps by its process id.

    What a killed one leaves in /tmp keeps one of the same id from starting: "The PMIx server's listener thread failed
    to start".
    """
    return ["--prtemca", "prte_tmpdir_base", tempfile.mkdtemp(dir=_sessions.name)]


def mpirun(*programs: list[str]) -> list[str]:
    """One process of each program; leading NAME=VALUE words are its environment."""
    line = [str(Path(sys.executable).with_name("mpirun")), *mpirun_options(), *session_options()]
    for i, program in enumerate(programs):
        line += [":"] if i else []
        line += ["-n", "1", "env", *program]
    return line


class Client(AgentClient):
    """A worker's connection."""

    def request(self, op: str, *, timeout_s: float, **fields: Any) -> dict[str, Any]:
        return with_step(plain(super().request(op, timeout_s=timeout_s, **fields)))


class AgentProcesses:
    """The agents of one attempt as a launcher starts them; the test is their runner and their workers."""

    def __init__(
        self,
        root: Path,
        nodes: list[str],
        attempt: int,
        section: dict[str, Any] | None = None,
        programs: dict[str, list[str]] | None = None,
        generation: int = 0,
        holders: Sequence[str] = (),
        has_workers: bool = True,
    ) -> None:
        """`programs`: the command lines of those nodes whose agent is to be another; they name ckpt.agent.

        Without workers others connect as such, with what `environment` gives.
        """
        self.monitors: list[Monitor] = []
        self.workers: list[Client] = []
        self.nodes = [*nodes, *holders]
        self._training = len(nodes) if has_workers else 0
        self._programs = programs or {}
        self.ram_dirs = [root / node for node in self.nodes]
        self.attempt = attempt
        self._log = root / f"agents-{attempt}.log"
        for ram_dir in self.ram_dirs:
            ram_dir.mkdir(mode=0o700, exist_ok=True)
        self._env = {
            **os.environ,
            **environment(loopback=True),
            "OMPI_MCA_mpi_ft_verbose": "1",  # names in the log whom MPI takes for dead
            "HOLDFAST_RUN_ID": RUN_ID,
            "HOLDFAST_ATTEMPT": str(attempt),
            "HOLDFAST_GENERATION": str(generation),
            "HOLDFAST_NODES": ",".join(nodes),
            "HOLDFAST_HOLDERS": ",".join(holders),
            "HOLDFAST_RANKS_PER_NODE": "1",
            "HOLDFAST_CHECKPOINT": json.dumps({"namespace": NAMESPACE, **(section or {})}),
        }

    def __enter__(self) -> AgentProcesses:
        self.start()
        try:
            for rank, ram_dir in enumerate(self.ram_dirs):
                path = ram_dir / f"agent-{self.attempt}.sock"
                self.monitors.append(Monitor.connect(ram_dir, self.attempt, WAIT_S))
                if rank < self._training:
                    self.workers.append(Client.connect(path, rank=rank, local_rank=0, timeout_s=WAIT_S))
        except AgentError as error:
            self.close()
            raise AssertionError(f"{error}:\n{self.log()}") from None
        return self

    def start(self) -> None:
        """Starts the agents and connects to none."""
        programs = [
            [f"HOLDFAST_NODE={node}", f"HOLDFAST_RAM_DIR={ram_dir}", *self._programs.get(node, command())]
            for node, ram_dir in zip(self.nodes, self.ram_dirs, strict=True)
        ]
        argv = mpirun(*programs) if len(programs) > 1 else ["env", *programs[0]]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                argv, env=self._env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kills the agents and waits for their end."""
        for link in (*self.monitors, *self.workers):
            link.close()
        for pid in self.pids().values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(WAIT_S)
        # An agent that is dying still takes connections, as long as any of its threads is there.
        until(
            lambda: all(_is_closed(ram_dir / f"agent-{self.attempt}.sock") for ram_dir in self.ram_dirs),
            "the agents' end",
        )

    def environment(self, ram_dir: Path) -> dict[str, str]:
        """That of a node's agent, and of its workers but for their ranks."""
        return {**self._env, "HOLDFAST_NODE": ram_dir.name, "HOLDFAST_RAM_DIR": str(ram_dir)}

    def pids(self) -> dict[str, int]:
        """The agents' processes by node."""
        found = {}
        for proc in Path("/proc").iterdir():
            with suppress(OSError):
                environ = (proc / "environ").read_bytes().split(b"\0")
                program = (proc / "cmdline").read_bytes().split(b"\0")
                program = [] if any(word.endswith(b"shim.py") for word in program) else program
                for node, ram_dir in zip(self.nodes, self.ram_dirs, strict=True):
                    mine = f"HOLDFAST_RAM_DIR={ram_dir}".encode() in environ
                    if mine and f"HOLDFAST_ATTEMPT={self.attempt}".encode() in environ and b"ckpt.agent" in program:
                        found[node] = int(proc.name)
        return found

    def log(self) -> str:
        return self._log.read_text()

    def save(self, step: int, slot: int, nbytes: int = 5000, *, flush: bool = False) -> None:
        """All ranks save; returns when all have heard of the commit."""
        self.seal(step, slot, nbytes, flush=flush)
        for worker in self.workers:
            events: list[dict[str, Any]] = []
            while not any(event["event"] == "committed" and event["step"] == step for event in events):
                fresh = worker.events(WAIT_S)
                assert fresh, f"no commit of step {step}:\n{self.log()}"
                events += fresh

    def seal(self, step: int, slot: int, nbytes: int = 5000, *, flush: bool = False) -> None:
        """All ranks stage their shards and say so."""
        for rank, (ram_dir, worker) in enumerate(zip(self.ram_dirs, self.workers, strict=False)):
            data = content(rank, step, nbytes)
            (ram_dir / f"own-0-{slot}.json").unlink(missing_ok=True)
            (ram_dir / f"own-0-{slot}.data").write_bytes(data)
            worker.send(
                "staged", slot=slot, step=step, rank=rank, layout=layout(len(data)).to_json(), descent=LINE.to_json(),
                flush=flush,
            )  # fmt: skip

    def read(self, worker: int, rank: int) -> bytes:
        reply = self.workers[worker].request("open", timeout_s=WAIT_S, rank=rank, blocks=None)
        data = Path(reply["path"]).read_bytes()[reply["base"] :]
        return data[: reply["record"]["layout"]["nbytes"]]


def _is_closed(path: Path) -> bool:
    """Whether nobody listens on a socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return True
    return False
