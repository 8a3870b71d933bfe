"""The face for a training script: load, should_save, save, should_stop."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ckpt import elastic_event
from ckpt.agent.rpc.transport import world_of
from ckpt.config import CheckpointConfig, Place, config_from_env
from ckpt.errors import AgentError, CheckpointError, ConfigError, StateError
from ckpt.fork import drop_descriptors_below, let_go_when_forked
from ckpt.memory.board import Board
from ckpt.native.memcpy import threads_per_rank
from ckpt.worker.boundaries import Cadence
from ckpt.worker.journal import Journal, rate
from ckpt.worker.load.contents import Contents, contents_of
from ckpt.worker.load.match import Restoration
from ckpt.worker.load.shard_reader import SavedStep
from ckpt.worker.save.flatten import Piece, take_apart
from ckpt.worker.save.replicas import World
from ckpt.worker.save.staging import Stager
from ckpt.worker.session import Identity, Session, Stage
from ckpt.worker.sigterm import leave_sigterm_to_the_stop
from ckpt.worker.standalone.mpi import ProgramAgents
from ckpt.worker.standalone.one_node import SoloAgent
from ckpt.worker.timeouts import Deadlines

if TYPE_CHECKING:
    from ckpt.worker.dcp import DcpReader, DcpWriter

log = logging.getLogger("ckpt")


class Checkpointer:
    """Saves a training state every few steps and gives the newest one back after a restart.

        with Checkpointer.from_env() as ckpt:
            step = ckpt.load(state) or 0
            while step < total:
                train_step(); step += 1
                if ckpt.should_save(step): ckpt.save(step, state)
                if ckpt.should_stop(step): break

    A state is a dict, nested as you like, of torch tensors, NumPy arrays, Python values (ckpt.format.json_values lists
    them), and objects with state_dict() and load_state_dict(). The same script runs under the launcher and by itself:
    without a launcher, on one node, `Checkpointer(namespace="x", shared="./ckpt")` starts an agent of its own; an MPI
    program's `Checkpointer(comm, ...)` starts one on each node.

    Every rank makes the same calls in the same order. Nothing here is a collective operation.
    """

    def __init__(
        self,
        comm: Any = None,
        *,
        namespace: str | None = None,
        shared: str | os.PathLike[str] | None = None,
        every_steps: int = 10,
        shared_every_steps: int = 100,
        config: CheckpointConfig | None = None,
        place: Place | None = None,
        rank: int | None = None,
        local_rank: int | None = None,
        replicated: Sequence[str] = (),
        deadlines: Deadlines | None = None,
        env: Mapping[str, str] = os.environ,
    ) -> None:
        """Under the launcher, its environment says all and outweighs these arguments.

        Args:
            comm: an mpi4py communicator that says which rank this is, for programs under mpirun or srun: on one node,
                or on several of a Slurm job. It starts an agent on each. Collective over it, and nothing after that is.
            namespace: name of the series of checkpoints; without `config`.
            shared: directory for checkpoints that outlive the node's memory; without `config`.
            every_steps: saves to memory; without `config`.
            shared_every_steps: saves to `shared`; without `config`.
            config: what to keep where, instead of the four above.
            place: where this process stands, for a launcher of your own that also starts the agents.
            rank: of this process in the world; default: RANK, or 0.
            local_rank: of this process on its node; default: LOCAL_RANK, or 0.
            replicated: keys of the state below which tensors and arrays are the same on all ranks ("model", or
                "model/head/weight"): they are stored once, a part by each rank. Parameters of DDP modules and
                replicated DTensors need no naming.
            deadlines: how long to wait for agents.
            env: the environment.

        Raises:
            ConfigError: an argument or variable is missing or unusable.
        """
        if comm is not None and "HOLDFAST_RUN_ID" not in env:
            env = {**env, **world_of(comm)}
        self._identity = Identity(rank=_number(env, "RANK", rank), local_rank=_number(env, "LOCAL_RANK", local_rank))
        self._deadlines = deadlines or Deadlines()
        self._own: SoloAgent | ProgramAgents | None = None  # agents that we have started ourselves
        if place is None and "HOLDFAST_RUN_ID" in env:
            place, config = Place.from_env(env), config_from_env(env)
        elif config is None:
            section: dict[str, Any] = {"namespace": namespace, "memory": {"every_steps": every_steps}}
            if shared is not None:
                section["shared"] = {"path": os.path.abspath(shared), "every_steps": shared_every_steps}
            config = CheckpointConfig.from_mapping(section, where="Checkpointer")
        self._config = config
        if place is None:
            if comm is not None:
                self._own = ProgramAgents(comm, config, env, self._deadlines.connect_s)
            else:
                self._own = SoloAgent(config, self._identity, env, self._deadlines.connect_s)
            place = self._own.place
        self._place = place
        if isinstance(replicated, str):
            raise ConfigError(f"Checkpointer: replicated={replicated!r}, expected a list of keys")
        self._world = World(rank=self._identity.rank, world_size=place.world_size, declared=tuple(replicated))
        self._stager = Stager(self._identity.rank, threads_per_rank(place.ranks_per_node))
        self._journal = Journal(config.namespace, env) if self._identity.rank == 0 else None
        self._lock = threading.RLock()  # torch's async_save stages in a thread
        self._session: Session | None = None
        self._cadence: Cadence | None = None
        self._last_step = 0
        self._is_forked = False
        let_go_when_forked(self)
        elastic_event.register(self)

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ, *, replicated: Sequence[str] = ()) -> Checkpointer:
        """The Checkpointer that the job file's `checkpoint:` section describes.

        Args:
            env: the environment.
            replicated: see Checkpointer.

        Raises:
            ConfigError: not started by the launcher, or there is no such section.
        """
        return cls(config=config_from_env(env), place=Place.from_env(env), env=env, replicated=replicated)

    def load(self, state: dict[str, Any], *, strict: bool = True) -> int:
        """Restores the newest step that can be recovered, from the nearest tier.

        Tensors and arrays are filled in place, objects get their state back, plain values are replaced in the dicts
        given. DTensors and tensors that are the same on all ranks may have been saved by any number of ranks in any
        layout; of everything else, rank r gets what saved rank r gave, or saved rank r modulo the saved world size.

        Args:
            state: built as it was for save(), with any contents.
            strict: False allows a state with fewer keys, at any level (a warm start of a model without its optimizer);
                only what it has is read. A key that was not saved is an error either way.

        Returns:
            The step; 0 when there is none, and the state is then unchanged.

        Raises:
            StateError: the state does not match what is stored; names all keys missing on either side.
            AgentError: the node's agent does not answer in time.
            CheckpointError: bytes turned out damaged everywhere; the next start restores an older step. What the state
                holds is then undefined. A StateError that says so as well comes from an object's load_state_dict; any
                other is raised before a byte has changed.
        """
        if not isinstance(state, dict):
            raise StateError(f"state: got a {type(state).__name__}, expected a dict")
        started = time.monotonic()
        restoration = Restoration(state, self._identity.rank, strict=strict)
        session = self._connect(restoration.wants)
        self._stager.hold_back()
        if session.plan.step:
            saved = session.saved_step()
            restoration.fill(saved)
            session.loaded()
            if self._identity.rank == 0:
                speed = rate(saved.bytes_read, time.monotonic() - started)
                log.info("loaded step %d from %s: %s", session.plan.step, session.plan.tier, speed)
        elif self._identity.rank == 0:
            log.info("no checkpoint of namespace %s: starting at step 0", self._config.namespace)
        with contextlib.suppress(StateError):  # save() will say so
            session.prepare(self._stager.plan(take_apart(state, self._world)))
        return session.plan.step

    def read(self, step: int | None = None, *, rank: int | None = None) -> Contents:
        """What a step holds, without a state to fill: to look into it, or to build objects from it.

            old = ckpt.read()
            old.state["epoch"]                    # values, as they were saved; an object is its state
            old.state["model"]["weight"].read()   # tensors are read when they are asked for; [:8] reads some rows

        Read the tensors before the next save: in memory the step lasts until newer ones take its place.

        Args:
            step: None takes the newest that can be recovered; any other is read from the shared or S3 tier.
            rank: the saved rank whose plain tensors, arrays and values are taken. Default: this rank, modulo the saved
                world size. Tensors that lie over several ranks are put together from all of them.

        Raises:
            CheckpointError: there is no such step.
            ConfigError: there is no such rank.
        """
        newest = self.newest_step
        if not newest and step is None:
            raise CheckpointError("read: there is no step to read; look at Checkpointer.newest_step before")
        saved = self.saved_step() if step is None or step == newest else self.stored_step(step)
        return contents_of(saved, self.rank % saved.world_size if rank is None else rank)

    def should_save(self, step: int) -> bool:
        """Whether to save this step: by the configured cadence, or because all ranks stop here.

        The first call for a step, of this or of `should_stop`, reports the step to the node's board. Further calls for
        the same step change nothing.
        """
        return self._boundaries().should_save(step)

    def should_stop(self, step: int) -> bool:
        """Whether all ranks stop at this step: a resize, a preemption, the time limit. Save before, call this after.

        Under the launcher the first call removes a SIGTERM handler of the script's own, with a warning.
        """
        self._take_sigterm()
        return self._boundaries().should_stop(step)

    def should_stop_here(self) -> bool:
        """For adapters: `should_stop` where no step is known."""
        self._take_sigterm()
        return self._boundaries().should_stop_here()

    def save(self, step: int, state: dict[str, Any], *, drain: bool = False) -> None:
        """Copies the state into memory that outlives this process, and returns; the rest happens in the agent.

        Tensors on a GPU are copied while training goes on: the next step of any torch optimizer waits for them, on the
        GPU. For tensors that an optimizer in the state updates this is all that keeps them as they are: change them by
        other means before the save, or after the next step; otherwise that save fails.

        Args:
            step: greater than that of the save before.
            state: see the class. May change as soon as this returns.
            drain: to every lower tier, whatever their cadence: for the last step of a run, say.

        Raises:
            StateError: the state holds something that cannot be stored; names it.
            AgentError: this is the first call of all, and the agent does not answer. Nothing else raises: a save
                that fails is logged and counted in `failed_saves`.
        """
        if not isinstance(state, dict):
            raise StateError(f"state: got a {type(state).__name__}, expected a dict")
        with self._lock:
            if self._connect().replicas_differ():
                self._stager.store_replicas_everywhere()
            parts = take_apart(state, self._world)
            nbytes = self._stager.plan(parts)
            self._save(step, nbytes, lambda slot: self._stager.stage_beside(slot, parts), drain=drain)

    def dcp_writer(self, step: int, *, drain: bool = False) -> DcpWriter:
        """A storage_writer for torch.distributed.checkpoint.save or async_save; `drain` as in `save`."""
        from ckpt.worker.dcp import DcpWriter

        return DcpWriter(self, step, drain=drain)

    def dcp_reader(self, step: int | None = None) -> DcpReader:
        """A storage_reader for torch.distributed.checkpoint.load.

        Args:
            step: None takes the newest that can be recovered. Any other is read from the shared or S3 tier, each rank
                what it needs. Newer steps stay: to train on from an older one, save to another namespace, or a restart
                will take the newest.
        """
        from ckpt.worker.dcp import DcpReader

        return DcpReader(self, step)

    @property
    def failed_saves(self) -> int:
        """Saves that did not come about, or did not reach a tier, since the start."""
        return self._session.failed_saves if self._session else 0

    @property
    def newest_step(self) -> int:
        """The step that load() and dcp_reader() restore; 0 when there is none."""
        return self._connect().plan.step

    def close(self, *, flush: bool = True) -> None:
        """Waits for saves in flight (unless told not to) and takes leave of the agent. May be called twice."""
        self._close(flush=flush, together=True)

    def _close(self, *, flush: bool, together: bool) -> None:
        if self._is_forked:
            return
        elastic_event.forget(self)
        with self._lock:
            if self._session:
                self._session.close(flush=flush)
                self._session = None
            if self._cadence:
                self._cadence.close()
                self._cadence = None
            self._stager.close()
            if self._own:
                self._own.close(together=together)
            if self._journal:
                self._journal.close()

    def let_go(self) -> None:
        """In a process forked from this one: it has no part in the checkpoints, whatever it calls here."""
        self._lock = threading.RLock()  # another thread may have held it
        self._is_forked = True
        drop_descriptors_below(self._place.ram_dir)
        self._session = self._cadence = None

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After an exception the agent finishes what it has by itself; an agent of our own would end with us.
        # The other ranks may wait for this one in a collective, so nobody waits for them.
        self._close(flush=kind is None or self._own is not None, together=kind is None)

    def save_pieces(self, step: int, pieces: list[Piece], tree: Any, *, drain: bool = False) -> None:
        """For adapters: saves tensors that are taken apart already, under a tree of the adapter's own."""
        with self._lock:
            nbytes = self._stager.plan_pieces(pieces)
            tensors = [piece.data for piece in pieces]
            self._save(step, nbytes, lambda slot: (self._stager.stage(slot, tensors, tree), None), drain=drain)

    def saved_step(self) -> SavedStep:
        """For adapters: the shards of `newest_step`."""
        return self._connect().saved_step()

    def stored_step(self, step: int) -> SavedStep:
        """For adapters: another committed step's shards, in a tier that all nodes see."""
        from ckpt.worker.load.tier_reader import stored_step

        return stored_step(self._config, step, threads_per_rank(self._place.ranks_per_node))

    def loaded(self) -> None:
        """For adapters: everything wanted of `saved_step` has been read."""
        self._connect().loaded()

    @property
    def rank(self) -> int:
        return self._identity.rank

    @property
    def counts_steps(self) -> bool:
        """Whether the script has asked at step boundaries what to do there."""
        return self._cadence is not None

    def _save(self, step: int, nbytes: int, stage: Stage, *, drain: bool = False) -> None:
        if step <= self._last_step:
            log.warning(
                "rank %d: step %d is not saved: step %d was before it", self._identity.rank, step, self._last_step
            )
            return
        self._last_step = step
        stopping = self._cadence is not None and self._cadence.stopping
        self._connect().save(step, nbytes, stage, tokens=self._stager.tokens, drain=drain or stopping)

    def _connect(self, wants: Callable[[SavedStep], list[Any]] | None = None) -> Session:
        with self._lock:
            if self._is_forked:
                raise AgentError(
                    f"process {os.getpid()} was forked from rank {self._identity.rank} and has no part in its "
                    "checkpoints: load and save in the process that made the Checkpointer"
                )
            if self._session is None:
                self._session = Session(
                    self._place, self._config, self._identity, self._deadlines, self._stager.pin, wants
                )
            return self._session

    def _take_sigterm(self) -> None:
        if self._own is None:
            leave_sigterm_to_the_stop()

    def _boundaries(self) -> Cadence:
        if self._cadence is None:
            self._connect()  # the agent has cleared the board when it listens
            lower = [tier.every_steps for tier in self._config.lower.values()]
            self._cadence = Cadence(
                Board.open(self._place.ram_dir),
                every_steps=[self._config.memory.every_steps, *lower],
                rank=self._identity.rank,
                local_rank=self._identity.local_rank,
                attempt=self._place.attempt,
                gate_s=self._deadlines.gate_s,
            )
        return self._cadence


def _number(env: Mapping[str, str], name: str, given: int | None) -> int:
    text = env.get(name, "0") if given is None else str(given)
    if not text.isdecimal():
        raise ConfigError(f"environment: {name}={text!r}, expected a whole number")
    return int(text)
