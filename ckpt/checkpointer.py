"""The interface for training scripts: load, should_save, save, should_stop."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from ckpt.config import CheckpointConfig, config_from_env, workers_config
from ckpt.errors import ConfigError
from ckpt.memory.board import SECTIONS
from ckpt.worker.engine import Engine
from ckpt.worker.load.contents import Contents, contents_of
from holdfast.base.environment import Variable
from holdfast.base.sections import by_name

if TYPE_CHECKING:
    from ckpt.worker.dcp import DcpReader, DcpWriter


class Checkpointer:
    """Saves a training state every few steps and restores the newest one after a restart.

        with Checkpointer.from_env() as ckpt:
            step = ckpt.load(state) or 0
            while step < total:
                train_step(); step += 1
                if ckpt.should_save(step): ckpt.save(step, state)
                if ckpt.should_stop(step): break

    A state is a dict, which may be nested, of torch tensors, NumPy arrays, Python values (ckpt.format.json_values lists
    them), and objects with state_dict() and load_state_dict(). The same script runs with and without the launcher.
    Without it, on one node, `Checkpointer(namespace="x", shared="./checkpoints")` starts its own agent. In an MPI
    program `Checkpointer(comm, ...)` starts one on each node.

    Every rank makes the same calls in the same order. No method is a collective operation. Rank 0 logs saves and
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
        """Starts the agents, if there is no launcher. Under a launcher, uses the job's agents.

        These arguments override the environment. Under a launcher the agents are already running. Then an argument that
        differs from the job file is an error, except `every_steps`.

        Args:
            comm: an mpi4py communicator with the program's ranks, for programs under mpirun or srun, on one node or on
                several nodes of a Slurm job. The constructor is then collective over it.
            namespace: name of the series of checkpoints; only without `config`.
            shared: directory for checkpoints that outlive the node's memory; only without `config`.
            every_steps: number of steps between saves to memory; only without `config`. Default: 10.
            config: the keys of a job file's `checkpoint` section, in place of these three arguments.
            replicated: keys of the state below which tensors and arrays are equal on all ranks ("model", or
                "model/head/weight"). They are stored once, a part by each rank. Parameters of DDP modules and
                replicated DTensors need not be named.

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
        if Variable.RUN_ID in env:
            config = workers_config(section, config_from_env(env))
            self._engine = Engine.from_env(env, config=config, replicated=replicated)
        else:
            if not isinstance(section, CheckpointConfig):
                section = CheckpointConfig.from_mapping(section, where="Checkpointer")
            self._engine = Engine.standalone(section, comm, env=env, replicated=replicated)

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ, *, replicated: Sequence[str] = ()) -> Checkpointer:
        """The Checkpointer of the job file's `checkpoint` section. Other launchers can set HOLDFAST_* too.

        Args:
            env: the environment.
            replicated: see Checkpointer.

        Raises:
            ConfigError: the script was not started by a launcher, or there is no such section.
        """
        return cls._around(Engine.from_env(env, replicated=replicated))

    @classmethod
    def _around(cls, engine: Engine) -> Checkpointer:
        found = cls.__new__(cls)
        found._engine = engine
        return found

    def load(
        self, state: dict[str, Any], *, step: int | Literal["best"] | None = None, strict: bool = True
    ) -> int | None:
        """Restores the newest step that can be recovered, or a chosen one, from the nearest tier.

        The newest step may be one that this run has saved. Saves in flight are waited for first.

        Tensors and arrays are filled in place, objects load their state, and plain values are replaced in the given
        dicts. DTensors and replicated tensors may have been saved by any number of ranks in any layout. Everything else
        belongs to one rank: rank r loads that of saved rank r, or of r modulo the saved world size.

        Args:
            state: built as for save(), with any contents.
            step: None: the newest. Another step is loaded from any tier that has all of it: the nodes' memory, their
                disks, the shared directory, the bucket. The next save then begins a new line of descent, which later
                starts restore. Newer steps stay as a line of their own; `holdfast ckpt ls` shows them.
                "best": the best step by the metric of `keep_best`, of those that the newest one continues.
            strict: False allows a state with fewer keys, at any level (a warm start of a model without its optimizer).
                Only these are read. A key that was not saved is always an error.

        Returns:
            The step; None if there is none. Then the state is unchanged.

        Raises:
            StateError: the state does not match the saved step. The message names all keys missing on either side, and
                who saved it. In a dict of plain values below the top level, keys that only the saved one has come in.
            AgentError: the node's agent did not reply in time.
            CheckpointError: no tier has the step, or none has the metric of "best"; or its bytes are damaged in all
                places, and the next start restores an older step. In the last case the content of the state is
                undefined, and so it is after a StateError from an object's load_state_dict. Every other StateError is
                raised before a byte has changed.
        """
        return self._engine.load(state, step=step, strict=strict)

    def read(self, step: int | Literal["best"] | None = None, *, rank: int | None = None) -> Contents:
        """Reads a step without a state to fill, to inspect it or to build objects from it.

            old = ckpt.read()
            old.state["epoch"]                    # values as saved; an object is a dict of its state
            old.state["model"]["weight"].read()   # tensors are read on demand; [:8] reads some rows

        Read the tensors before the next save: the step stays in memory only until newer ones replace it.

        Args:
            step: None: the newest recoverable step; another one, or "best", as in load().
            rank: the saved rank whose plain tensors, arrays and values are returned. Default: this rank, modulo the
                saved world size. Distributed tensors are combined from all ranks.

        Raises:
            CheckpointError: there is no such step.
            ConfigError: there is no such rank.
        """
        saved = self._engine.read_step(step, "read")
        return contents_of(saved, self._engine.rank % saved.world_size if rank is None else rank)

    def should_save(self, step: int) -> bool:
        """Whether to save this step: a configured cadence is due, or all ranks stop here. False once it has been saved.

        The first call of this or of `should_stop` for a step reports the step to the node's board. Further calls for
        the same step have no effect.
        """
        return self._engine.should_save(step)

    def should_stop(self, step: int) -> bool:
        """Whether all ranks stop at this step: a resize, a preemption, the time limit. Save before this call.

        Under the launcher the first call removes the script's own SIGTERM handler and logs a warning.
        """
        return self._engine.should_stop(step)

    def section(self, name: str) -> AbstractContextManager[object]:
        """A context manager around a part of the work.

            with ckpt.section("data"):
                batch = read_batch()
            with ckpt.section("evaluation"):
                evaluate(model)

        "data", "compute" and "communication" are parts of the step, for the search for slow ranks
        (docs/guide/stragglers.md). Without them, time in a torch DataLoader is data, the wait for other ranks is
        communication, and the rest is compute. One within another one interrupts it.

        "evaluation" and "checkpoint" tell the launcher that long work without a step is no hang: an evaluation, or a
        framework's own save. Such work has its own limit, learned from the job's own times. `save` tells it by itself.
        Any rank may call it alone.

        Raises:
            ConfigError: another name.
        """
        if name in SECTIONS[1:]:
            return self._engine.section(name)
        try:
            return by_name[name]
        except KeyError:
            expected = ", ".join((*by_name, *SECTIONS[1:]))
            raise ConfigError(f"section: got {name!r}, expected one of {expected}") from None

    def save(
        self, step: int, state: dict[str, Any], *, flush: bool = False, metrics: Mapping[str, Any] | None = None
    ) -> None:
        """Copies the state into memory that outlives this process, and returns. The agent does the rest.

        Tensors on a GPU are copied while training continues. The next step of any torch optimizer waits for the copy,
        on the GPU. Nothing else protects tensors that an optimizer in the state updates: change them in other ways only
        before the save or after that step. Otherwise the save fails.

        Args:
            step: at least 0, below 2**62, and greater than that of the previous save.
            state: as described in the class docstring. It may change as soon as this returns.
            flush: whether to write the step to every lower tier, whatever its cadence. At the end of a job the agents
                write the newest step there by themselves.
            metrics: numbers by name, such as {"loss": 2.5}, for `keep_best`. They are stored with the step. Of each
                metric the value of the lowest rank that gives it counts, so give one that all ranks have reduced, or
                give it on rank 0 alone. A value that is infinite or not a number is left out. A GPU tensor makes the
                save wait for the GPU.

        Raises:
            StateError: the state contains something that cannot be stored, or a metric is no number. The message names
                it.
            ConfigError: another Checkpointer of this process has saved, and is open.
            AgentError: the agent did not reply, and this is the first call of all. No other error is raised: a failed
                save is logged and counted in `failed_saves`.
        """
        self._engine.save(step, state, flush=flush, metrics=metrics)

    def dcp_writer(self, step: int, *, flush: bool = False, metrics: Mapping[str, Any] | None = None) -> DcpWriter:
        """A storage_writer for torch.distributed.checkpoint.save or async_save; `flush` and `metrics` as in `save`."""
        from ckpt.worker.dcp import DcpWriter

        return DcpWriter(self._engine, step, flush=flush, metrics=metrics)

    def dcp_reader(self, step: int | Literal["best"] | None = None) -> DcpReader:
        """A storage_reader for torch.distributed.checkpoint.load.

        Args:
            step: None: the newest recoverable step; another one, or "best", as in load().
        """
        from ckpt.worker.dcp import DcpReader

        return DcpReader(self._engine, step)

    @property
    def failed_saves(self) -> int:
        """The number of saves since the start that were dropped, or did not reach a tier."""
        return self._engine.failed_saves

    @property
    def newest_step(self) -> int | None:
        """The step that load(), read() and dcp_reader() restore; None if there is none.

        At first the step that the agents can restore, later the newest one that this run has committed. Waits until it
        is known whether the saves in flight are committed.
        """
        return self._engine.newest_step

    def close(self, *, wait: bool = True) -> None:
        """Waits for saves in flight, unless `wait` is False, and disconnects from the agent.

        A second call does nothing.
        """
        self._engine.close(wait=wait)

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After an exception nothing is waited for, because the other ranks may wait for this one in a collective. The
        # agents of a job finish their work by themselves; an agent that this process started ends with it.
        self._engine.close(wait=kind is None or self._engine.has_own_agents, together=kind is None)
