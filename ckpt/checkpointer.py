"""The face for a training script: load, should_save, save, should_stop."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ckpt.config import CheckpointConfig, config_from_env, workers_config
from ckpt.errors import CheckpointError, ConfigError
from ckpt.worker.engine import Engine
from ckpt.worker.load.contents import Contents, contents_of
from ckpt.worker.timeouts import WorkerDeadlines

if TYPE_CHECKING:
    from ckpt.worker.dcp import DcpReader, DcpWriter


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

    Every rank makes the same calls in the same order. Nothing here is a collective operation. Rank 0 logs saves and
    loads to the logger `ckpt`, at INFO; `logging.basicConfig(level="INFO")` shows them.
    """

    def __init__(
        self,
        comm: Any = None,
        *,
        namespace: str | None = None,
        shared: str | os.PathLike[str] | None = None,
        every_steps: int | None = None,
        config: CheckpointConfig | Mapping[str, Any] | None = None,
        replicated: Sequence[str] = (),
    ) -> None:
        """Without a launcher, this starts the agents. Under one, it uses those of the job.

        These arguments beat the environment. Under a launcher the agents run already, so an argument that says
        something else than the job file is an error; only `every_steps` may differ.

        Args:
            comm: an mpi4py communicator that says which rank this is, for programs under mpirun or srun: on one node,
                or on several of a Slurm job. The constructor is then collective over it.
            namespace: name of the series of checkpoints; without `config`.
            shared: directory for checkpoints that outlive the node's memory; without `config`.
            every_steps: saves to memory; without `config`. Default: 10.
            config: what to keep where, instead of these three: the keys of a job file's `checkpoint` section.
            replicated: keys of the state below which tensors and arrays are the same on all ranks ("model", or
                "model/head/weight"): they are stored once, a part by each rank. Parameters of DDP modules and
                replicated DTensors need no naming.

        Raises:
            ConfigError: an argument or variable is missing or unusable.
            AgentError: the agents did not start.
        """
        section: Mapping[str, Any] | CheckpointConfig
        if config is not None:
            if (namespace, shared, every_steps) != (None, None, None):
                raise ConfigError("Checkpointer: got config and namespace, shared or every_steps; put all into config")
            section = config
        else:
            section = {
                **({"namespace": namespace} if namespace is not None else {}),
                **({"memory": {"every_steps": every_steps}} if every_steps is not None else {}),
                **({"shared": {"path": os.path.abspath(shared)}} if shared is not None else {}),
            }
        env = os.environ
        if "HOLDFAST_RUN_ID" in env:
            config = workers_config(section, config_from_env(env))
            self._engine = Engine.from_env(env, config=config, replicated=replicated)
        else:
            if not isinstance(section, CheckpointConfig):
                section = CheckpointConfig.from_mapping(section, where="Checkpointer")
            self._engine = Engine.standalone(section, comm, env=env, replicated=replicated)

    @classmethod
    def from_env(
        cls,
        env: Mapping[str, str] = os.environ,
        *,
        replicated: Sequence[str] = (),
        deadlines: WorkerDeadlines | None = None,
    ) -> Checkpointer:
        """The Checkpointer that the job file's `checkpoint` section describes; a launcher of your own sets HOLDFAST_*.

        Args:
            env: the environment.
            replicated: see Checkpointer.
            deadlines: how long to wait for agents.

        Raises:
            ConfigError: not started by a launcher, or there is no such section.
        """
        return cls._around(Engine.from_env(env, replicated=replicated, deadlines=deadlines))

    @classmethod
    def _around(cls, engine: Engine) -> Checkpointer:
        found = cls.__new__(cls)
        found._engine = engine
        return found

    def load(self, state: dict[str, Any], *, step: int | None = None, strict: bool = True) -> int | None:
        """Restores the newest step that can be recovered, or a chosen one, from the nearest tier.

        Tensors and arrays are filled in place, objects get their state back, plain values are replaced in the dicts
        given. DTensors and tensors that are the same on all ranks may have been saved by any number of ranks in any
        layout; of everything else, rank r gets what saved rank r gave, or saved rank r modulo the saved world size.

        Args:
            state: built as it was for save(), with any contents.
            step: None takes the newest. Any other comes from whichever tier has all of it: the nodes' memory, their
                disks, the shared directory, the bucket. Newer steps stay: to train on from an older one, save to
                another namespace, or a restart takes the newest.
            strict: False allows a state with fewer keys, at any level (a warm start of a model without its optimizer);
                only what it has is read. A key that was not saved is an error either way.

        Returns:
            The step; None where there is none, and the state is then unchanged.

        Raises:
            StateError: the state does not match what is stored; names all keys missing on either side.
            AgentError: the node's agent does not answer in time.
            CheckpointError: no tier has the step; or bytes turned out damaged everywhere, and the next start restores
                an older step. What the state holds is then undefined. A StateError that says so as well comes from an
                object's load_state_dict; any other is raised before a byte has changed.
        """
        return self._engine.load(state, step=step, strict=strict)

    def read(self, step: int | None = None, *, rank: int | None = None) -> Contents:
        """What a step holds, without a state to fill: to look into it, or to build objects from it.

            old = ckpt.read()
            old.state["epoch"]                    # values, as they were saved; an object is its state
            old.state["model"]["weight"].read()   # tensors are read when they are asked for; [:8] reads some rows

        Read the tensors before the next save: in memory the step lasts until newer ones take its place.

        Args:
            step: None takes the newest that can be recovered; any other comes from whichever tier has it, as in load().
            rank: the saved rank whose plain tensors, arrays and values are taken. Default: this rank, modulo the saved
                world size. Tensors that lie over several ranks are put together from all of them.

        Raises:
            CheckpointError: there is no such step.
            ConfigError: there is no such rank.
        """
        if step is None and self.newest_step is None:
            raise CheckpointError("read: there is no step to read; look at Checkpointer.newest_step before")
        saved = self._engine.saved_step(step)
        return contents_of(saved, self._engine.rank % saved.world_size if rank is None else rank)

    def should_save(self, step: int) -> bool:
        """Whether to save this step: by the configured cadence, or because all ranks stop here.

        The first call for a step, of this or of `should_stop`, reports the step to the node's board. Further calls for
        the same step change nothing.
        """
        return self._engine.should_save(step)

    def should_stop(self, step: int) -> bool:
        """Whether all ranks stop at this step: a resize, a preemption, the time limit. Save before, call this after.

        Under the launcher the first call removes a SIGTERM handler of the script's own, with a warning.
        """
        return self._engine.should_stop(step)

    def save(self, step: int, state: dict[str, Any], *, flush: bool = False) -> None:
        """Copies the state into memory that outlives this process, and returns; the rest happens in the agent.

        Tensors on a GPU are copied while training goes on: the next step of any torch optimizer waits for them, on the
        GPU. For tensors that an optimizer in the state updates this is all that keeps them as they are: change them by
        other means before the save, or after the next step; otherwise that save fails.

        Args:
            step: at least 0, and greater than that of the save before.
            state: see the class. May change as soon as this returns.
            flush: to every lower tier, whatever their cadence: for the last step of a run, say.

        Raises:
            StateError: the state holds something that cannot be stored; names it.
            AgentError: this is the first call of all, and the agent does not answer. Nothing else raises: a save
                that fails is logged and counted in `failed_saves`.
        """
        self._engine.save(step, state, flush=flush)

    def dcp_writer(self, step: int, *, flush: bool = False) -> DcpWriter:
        """A storage_writer for torch.distributed.checkpoint.save or async_save; `flush` as in `save`."""
        from ckpt.worker.dcp import DcpWriter

        return DcpWriter(self._engine, step, flush=flush)

    def dcp_reader(self, step: int | None = None) -> DcpReader:
        """A storage_reader for torch.distributed.checkpoint.load.

        Args:
            step: None takes the newest that can be recovered; any other comes from whichever tier has it, as in load().
        """
        from ckpt.worker.dcp import DcpReader

        return DcpReader(self._engine, step)

    @property
    def failed_saves(self) -> int:
        """Saves that did not come about, or did not reach a tier, since the start."""
        return self._engine.failed_saves

    @property
    def newest_step(self) -> int | None:
        """The step that load() and dcp_reader() restore; None where there is none."""
        return self._engine.newest_step

    def close(self, *, wait: bool = True) -> None:
        """Waits for saves in flight (unless told not to) and disconnects from the agent. May be called twice."""
        self._engine.close(wait=wait)

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After an exception the agent finishes what it has by itself; an agent of our own would end with us.
        # The other ranks may wait for this one in a collective, so nobody waits for them.
        self._engine.close(wait=kind is None or self._engine.has_own_agents, together=kind is None)
