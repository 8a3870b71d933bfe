"""A one-node agent of our own, for a script that runs without a launcher (python, torchrun on one node).

Rank 0 of the node starts it and writes a note into the memory directory; the other workers of the same launch wait for
the note. The agent ends with rank 0.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import stat
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import xxhash

from ckpt.agent.client import Monitor
from ckpt.config import CheckpointConfig, Place
from ckpt.errors import AgentError, ConfigError
from ckpt.record.files import dump_json, durable_write
from ckpt.tiers.posix import SharedTier
from ckpt.trainer.session import Identity

_NOTE = "solo.json"
_MEMORY = Path("/dev/shm")
_POLL_S = 0.02
_END_S = 30.0  # for the agent to end after it was asked to

log = logging.getLogger(__name__)


class SoloAgent:
    """The agent of a run that has one node and no launcher; `place` says where this process stands."""

    def __init__(self, config: CheckpointConfig, identity: Identity, env: Mapping[str, str], timeout_s: float) -> None:
        """Starts the agent (rank 0), or waits until rank 0 has.

        Raises:
            ConfigError: more than one node, or the namespace is in use on this node.
            AgentError: rank 0 did not start the agent in time.
        """
        ranks = int(env.get("LOCAL_WORLD_SIZE", "1"))
        if int(env.get("WORLD_SIZE", "1")) != ranks:
            raise ConfigError(
                "Checkpointer: several nodes need the launcher (holdfast run or submit): it starts an agent on each"
            )
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = -1
        # All workers of one launch share their parent and its restart count.
        launch = f"{os.getppid()}.{env.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        ram_dir = _memory_directory(config)
        if identity.local_rank == 0:
            self._lock_directory(ram_dir, config)
            attempt = max(int(time.time()), _note(ram_dir).get("attempt", 0) + 1)
            self.place = _place(config, ram_dir, _run_id(config), attempt, ranks)
            self._start(config)
            _write_note(self.place, launch)
        else:
            note = _wait_for_note(ram_dir, launch, timeout_s)
            self.place = _place(config, ram_dir, str(note["run_id"]), int(note["attempt"]), ranks)

    def close(self) -> None:
        """Ends the agent, where this process has started it."""
        process, self._process = self._process, None
        if process is None:
            return
        _write_note(self.place, launch="")  # nobody may follow it any more; the next attempt counts on from it
        try:
            with Monitor.connect(self.place.ram_dir, self.place.attempt, timeout_s=_END_S) as monitor:
                monitor.shutdown()
            process.wait(timeout=_END_S)
        except (AgentError, subprocess.TimeoutExpired) as error:
            log.warning("the checkpoint agent (pid %d) does not end: %s; killing it", process.pid, error)
            process.kill()
            process.wait()
        os.close(self._lock)

    def _lock_directory(self, ram_dir: Path, config: CheckpointConfig) -> None:
        self._lock = os.open(ram_dir / "solo.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise ConfigError(
                f"Checkpointer: namespace {config.namespace!r} is in use by another process on this node ({ram_dir}); "
                "wait for it to end, or choose another namespace"
            ) from None

    def _start(self, config: CheckpointConfig) -> None:
        place = self.place
        environment = {
            **os.environ,
            "HOLDFAST_RUN_ID": place.run_id,
            "HOLDFAST_ATTEMPT": str(place.attempt),
            "HOLDFAST_NODE": place.node,
            "HOLDFAST_NODES": place.node,
            "HOLDFAST_RANKS_PER_NODE": str(place.ranks_per_node),
            "HOLDFAST_RAM_DIR": str(place.ram_dir),
            "HOLDFAST_CHECKPOINT": json.dumps({k: v for k, v in asdict(config).items() if v is not None}),
        }
        with open(place.ram_dir / "agent.log", "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ckpt.agent"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for the script; the agent still has to keep what it has
            )


def _place(config: CheckpointConfig, ram_dir: Path, run_id: str, attempt: int, ranks: int) -> Place:
    node = os.uname().nodename
    return Place(run_id=run_id, attempt=attempt, node=node, nodes=(node,), ranks_per_node=ranks, ram_dir=ram_dir)


def _run_id(config: CheckpointConfig) -> str:
    """The same for every start that shares a directory; another once that was deleted: then training starts anew."""
    if config.shared is None:
        return f"solo-{config.namespace}"
    created = SharedTier(config.shared.path, config.namespace).prepare()
    return f"solo-{config.namespace}-{xxhash.xxh32_hexdigest(repr(created).encode())}"


def _memory_directory(config: CheckpointConfig) -> Path:
    """The memory directory of this namespace and shared directory, private to this user."""
    base = _MEMORY / f"holdfast-{os.getuid()}"
    shared = config.shared.path if config.shared else ""
    directory = base / f"solo-{config.namespace[:40]}-{xxhash.xxh32_hexdigest(f'{config.namespace} {shared}'.encode())}"
    for path in (base, directory):
        path.mkdir(mode=0o700, exist_ok=True)
        status = os.lstat(path)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise ConfigError(f"{path}: expected a directory of mode 0700 that belongs to uid {os.getuid()}; remove it")
    return directory


def _write_note(place: Place, launch: str) -> None:
    note = {"launch": launch, "pid": os.getpid(), "attempt": place.attempt, "run_id": place.run_id}
    durable_write(place.ram_dir / _NOTE, dump_json(note), sync=False)


def _note(ram_dir: Path) -> dict[str, Any]:
    try:
        note = json.loads((ram_dir / _NOTE).read_bytes())
    except (OSError, ValueError):
        return {}
    return note if isinstance(note, dict) else {}


def _wait_for_note(ram_dir: Path, launch: str, timeout_s: float) -> dict[str, Any]:
    deadline = time.monotonic() + timeout_s
    while (note := _note(ram_dir)).get("launch") != launch or not Path(f"/proc/{note.get('pid')}").exists():
        if time.monotonic() > deadline:
            raise AgentError(f"{ram_dir}: local rank 0 has not started the checkpoint agent within {timeout_s:g} s")
        time.sleep(_POLL_S)
    return note
