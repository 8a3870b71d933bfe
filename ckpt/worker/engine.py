"""One worker's saves and loads, behind all public interfaces: Checkpointer, torch's DCP, HyperPod's names."""

from __future__ import annotations

import contextlib
import gc
import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ckpt import elastic_event
from ckpt.agent.rpc.transport import world_of
from ckpt.config import CheckpointConfig, Place, config_from_env
from ckpt.errors import AgentError, CheckpointError, ConfigError, StateError
from ckpt.fork import drop_descriptors_below, let_go_when_forked
from ckpt.format.lasting import is_metric_name
from ckpt.format.line import FIRST
from ckpt.memory.board import Board
from ckpt.native.memcpy import threads_per_rank
from ckpt.sections import AUTO, AUTO_FROM
from ckpt.timeouts import WorkerDeadlines
from ckpt.worker.boundaries import Cadence, leave_sigterm_to_the_stop
from ckpt.worker.link import Identity
from ckpt.worker.load.match import Restoration
from ckpt.worker.load.shard_reader import SavedStep
from ckpt.worker.placement import Piece
from ckpt.worker.save.flatten import take_apart
from ckpt.worker.save.replicas import World
from ckpt.worker.save.staging import StagePlan, Stager, plan_of
from ckpt.worker.save_in_flight import SaveInFlight
from ckpt.worker.session import Session
from ckpt.worker.slots import rate
from ckpt.worker.standalone.mpi import ProgramAgents
from ckpt.worker.standalone.one_node import SoloAgent

_saving: weakref.WeakValueDictionary[tuple[Path, int], Engine] = weakref.WeakValueDictionary()  # by slots in use
_standalone: dict[tuple[str, str], Engine] = {}  # open ones with an agent of their own, by namespace and directory
BEST = "best"
ChosenStep = int | Literal["best"] | None  # None: the newest
_STEPS_END = 1 << 62  # SaveId refuses this step and later ones

log = logging.getLogger("ckpt")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a script asks of one save. `since_s` is when it has called, by the monotonic clock."""

    flush: bool
    metrics: dict[str, float]
    since_s: float


class Engine:
    """Connects to the node's agent on first use. Every rank makes the same calls in the same order."""

    def __init__(
        self,
        place: Place,
        config: CheckpointConfig,
        identity: Identity,
        *,
        replicated: Sequence[str] = (),
        deadlines: WorkerDeadlines | None = None,
        agents: SoloAgent | ProgramAgents | None = None,
    ) -> None:
        """
        Args:
            config: the configuration of the node's agent; only the worker's own cadence may differ.
            agents: the agents, if this process or its MPI program has started them.

        Raises:
            ConfigError: `replicated` is not a list.
        """
        if isinstance(replicated, str):
            raise ConfigError(f"Checkpointer: replicated={replicated!r}, expected a list of keys")
        self.place = place
        self._config = config
        self._identity = identity
        self._deadlines = deadlines or WorkerDeadlines()
        self._agents = agents
        self._world = World(rank=identity.rank, world_size=place.world_size, declared=tuple(replicated))
        self._stager = Stager(identity.rank, threads_per_rank(place.ranks_per_node))
        self._lock = threading.RLock()  # torch's async_save stages in a thread
        self._session: Session | None = None
        self._cadence: Cadence | None = None
        self._is_forked = self._is_closed = False
        self._delays_collection = False
        self._only_loaded: SavedStep | None = None  # the step that was loaded, while no further one is made
        self._not_finite: set[str] = set()  # metrics that were once infinite or not a number
        self._failed_saves = 0  # of a session that is closed
        let_go_when_forked(self)
        elastic_event.register(self)

    @classmethod
    def from_env(
        cls, env: Mapping[str, str], *, replicated: Sequence[str] = (), config: CheckpointConfig | None = None
    ) -> Engine:
        """The engine under a launcher, which has started the agents and describes them in the environment.

        Args:
            config: the worker's configuration; default: that of the agents.

        Raises:
            ConfigError: this process was not started by a launcher, or the job has no `checkpoint` section.
        """
        config = config or config_from_env(env)
        return cls(Place.from_env(env), config, _identity(env), replicated=replicated)

    @classmethod
    def standalone(
        cls, config: CheckpointConfig, comm: Any = None, *, env: Mapping[str, str], replicated: Sequence[str] = (),
        deadlines: WorkerDeadlines | None = None,
    ) -> Engine:  # fmt: skip
        """Without a launcher: starts an agent, or one on each node of an MPI program. Collective over `comm`.

        Raises:
            ConfigError: an argument or variable is missing or unusable.
            AgentError: the agents did not start.
        """
        if comm is not None:
            env = {**env, **world_of(comm)}
        identity, deadlines = _identity(env), deadlines or WorkerDeadlines()
        agents: SoloAgent | ProgramAgents
        if comm is not None:
            agents = ProgramAgents(comm, config, env, deadlines)
        else:
            _close_earlier(config)
            agents = SoloAgent(config, identity, env, deadlines)
        engine = cls(agents.place, config, identity, replicated=replicated, deadlines=deadlines, agents=agents)
        if comm is None:
            _standalone[_key(config)] = engine
        return engine

    # load

    def load(self, state: dict[str, Any], *, step: ChosenStep, strict: bool) -> int | None:
        """See ckpt.Checkpointer."""
        if not isinstance(state, dict):
            raise StateError(f"state: got a {type(state).__name__}, expected a dict")
        started = time.monotonic()
        restoration = Restoration(state, self.rank, self.place.world_size, strict=strict)
        session = self.connect(restoration.wants if step is None else None)
        self._stager.hold_back()
        loaded = None
        step = session.newest_step() if step is None else self._number_of_step(step)
        if step is not None:
            saved = session.saved_step(step)
            restoration.fill(saved)
            seconds = time.monotonic() - started
            session.loaded(saved, seconds)
            self._may_save_again()
            loaded = saved.step
            self._only_loaded = saved
            if self.rank == 0:
                whose = saved.save.line.whose if saved.save else ""
                of = f"namespace {self._config.namespace}{f', saved by {whose},' if whose else ''}"
                log.info("loaded step %d of %s from %s: %s", loaded, of, saved.tier, rate(saved.bytes_read, seconds))
        elif self.rank == 0:
            log.info("no checkpoint of namespace %s: nothing is loaded", self._config.namespace)
        with contextlib.suppress(StateError), self._lock:  # save() raises it
            session.prepare(self._stager.plan(take_apart(state, self._world)).nbytes)
        return loaded

    def _may_save_again(self) -> None:
        if self._cadence is not None:
            self._cadence.saved(None)

    def _number_of_step(self, step: int | str) -> int:
        if isinstance(step, str):
            if step != BEST:
                raise StateError(f"step: got {step!r:.60}, expected a number, {BEST!r} or None")
            return self.connect().best_step()
        return step

    def saved_step(self, step: ChosenStep, caller: str) -> SavedStep:
        """The shards of a step that is complete in one tier.

        Args:
            step: None: `newest_step`; "best": the best one by the metric of `keep_best`.
            caller: the name of the public function, for the error if there is no step.

        Raises:
            CheckpointError: there is no such step.
        """
        if step is None:
            step = self.newest_step
        if step is None:
            raise CheckpointError(f"{caller}: there is no step to restore; check Checkpointer.newest_step first")
        return self.connect().saved_step(self._number_of_step(step))

    def read_step(self, step: ChosenStep, caller: str) -> SavedStep:
        """As `saved_step`, for a script that may go on from what it reads."""
        saved = self.saved_step(step, caller)
        if saved.save is not None:
            self.connect().descent.took(saved.save, is_load=False)
        return saved

    def loaded(self, saved: SavedStep, seconds: float) -> None:
        """Tells the agent that everything needed of a step has been read, and that the script goes on from it."""
        session = self.connect()
        session.loaded(saved, seconds)
        session.map_slots()
        self._may_save_again()

    # save

    def save(self, step: int, state: dict[str, Any], *, flush: bool, metrics: Mapping[str, Any] | None = None) -> None:
        """See ckpt.Checkpointer."""
        since_s, numbers = time.monotonic(), self._finite(step, metrics)
        if not isinstance(state, dict):
            raise StateError(f"state: got a {type(state).__name__}, expected a dict")
        with self._lock, self.section("checkpoint"):
            if self.connect().replicas_differ():
                self._stager.store_replicas_everywhere()
            with self._no_collection():
                self._save_state(step, state, Asked(flush=flush, metrics=numbers, since_s=since_s))

    def _save_state(self, step: int, state: dict[str, Any], asked: Asked) -> None:
        parts = take_apart(state, self._world)
        plan = self._stager.plan(parts)
        with self._save(step, plan, asked) as save:
            if save is not None:
                save.staged(*self._stager.stage_overlapped(save.slot, plan, parts))

    def save_pieces(
        self, step: int, pieces: list[Piece], tree: Any, *, flush: bool, metrics: Mapping[str, Any] | None = None
    ) -> None:
        """Saves tensors that are already flattened, under a tree of the caller's."""
        asked = Asked(flush=flush, since_s=time.monotonic(), metrics=self._finite(step, metrics))
        with self._lock, self.section("checkpoint"):
            plan = plan_of(pieces)
            with self._save(step, plan, asked) as save:
                if save is not None:
                    save.staged(self._stager.stage(save.slot, plan, [piece.data for piece in pieces], tree))

    def _finite(self, step: int, metrics: Mapping[str, Any] | None) -> dict[str, float]:
        """The metrics as plain numbers. Those that are infinite or not a number are left out, which is logged once."""
        numbers: dict[str, float] = {}
        for name, value in (metrics or {}).items():
            number = _number_of(name, value)
            if math.isfinite(number):
                numbers[name] = number
            elif name not in self._not_finite:
                self._not_finite.add(name)
                log.warning(
                    "rank %d: metric %s of step %s is %s: such a step is never among the best", self.rank, name, step,
                    number,
                )  # fmt: skip
        return numbers

    @contextlib.contextmanager
    def _no_collection(self) -> Iterator[None]:
        """Delays garbage collection: a full one takes 0.15 s with torch, and comes in other saves on other ranks.

        The objects of a save end by their reference counts. Those of 20 saves of 400 tensors brought about a full one.
        """
        if not gc.isenabled():
            yield
            return
        self._delays_collection = True
        gc.disable()
        try:
            yield
        finally:
            self._end_delay()

    def _end_delay(self) -> None:
        if self._delays_collection:
            self._delays_collection = False
            gc.enable()

    @contextlib.contextmanager
    def _save(self, step: int, plan: StagePlan, asked: Asked) -> Iterator[SaveInFlight | None]:
        """A save for the `with` block to stage; None if it was dropped."""
        if not isinstance(step, int) or not 0 <= step < _STEPS_END:
            raise StateError(f"step: got {step!r:.80}, expected a whole number of at least 0 and below {_STEPS_END}")
        self._only_loaded = None
        if _saving.setdefault(self._slots, self) is not self:
            raise ConfigError(
                f"rank {self.rank}: another Checkpointer of this process saves to the same memory; use one"
            )
        stopping = self._cadence is not None and self._cadence.stopping
        with self.connect().save(
            step, plan.nbytes, tokens=plan.tokens, flush=asked.flush or stopping, metrics=asked.metrics,
            since_s=asked.since_s,
        ) as save:  # fmt: skip
            yield save
        if self._cadence is not None:
            self._cadence.saved(step)

    # step boundaries

    def should_save(self, step: int) -> bool:
        """See ckpt.Checkpointer."""
        return self._boundaries().should_save(step)

    def should_stop(self, step: int | None) -> bool:
        """See ckpt.Checkpointer. `step` is None if the caller does not know it."""
        if self._agents is None:
            leave_sigterm_to_the_stop()
        boundaries = self._boundaries()
        return boundaries.should_stop_here() if step is None else boundaries.should_stop(step)

    def section(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Tells the launcher what this rank does. Before the first step boundary the start has its own limit."""
        return contextlib.nullcontext() if self._cadence is None else self._cadence.section(name)

    @property
    def counts_steps(self) -> bool:
        """Whether the script has called should_save() or should_stop()."""
        return self._cadence is not None

    def _boundaries(self) -> Cadence:
        self._only_loaded = None
        if self._cadence is None:
            self.connect()  # the agent clears the board before it listens
            every = [steps for tier in self._config.lower.values() for steps in tier.multiples]
            memory = self._config.memory.every_steps
            self._cadence = Cadence(
                Board.open(self.place.ram_dir),
                every_steps=every if memory == AUTO else [memory, *every],
                auto_from=AUTO_FROM if memory == AUTO else 0,
                rank=self.rank,
                local_rank=self._identity.local_rank,
                attempt=self.place.attempt,
                gate_s=self._deadlines.gate_s,
                modules=self.place.modules if self._identity.local_rank == 0 else None,
            )
        return self._cadence

    # life

    @property
    def rank(self) -> int:
        return self._identity.rank

    @property
    def _slots(self) -> tuple[Path, int]:
        """Identifies this rank's slots. A second engine would overwrite the step that the first one has committed."""
        return self.place.ram_dir, self._identity.local_rank

    @property
    def newest_step(self) -> int | None:
        """See ckpt.Checkpointer."""
        return self.connect().newest_step()

    @property
    def failed_saves(self) -> int:
        return self._session.failed_saves if self._session else self._failed_saves

    @property
    def has_own_agents(self) -> bool:
        """Whether the agents end with this process or its MPI program."""
        return self._agents is not None

    def connect(self, wants: Callable[[SavedStep], list[Any]] | None = None) -> Session:
        """The session with the node's agent. The first call waits for the agent's plan."""
        with self._lock:
            if self._is_forked:
                raise AgentError(
                    f"process {os.getpid()} was forked from rank {self.rank} and has no part in its "
                    "checkpoints: load and save in the process that made the Checkpointer"
                )
            if self._is_closed:
                raise ConfigError(f"rank {self.rank}: this Checkpointer is closed; make another one")
            if self._session is None:
                self._session = Session(
                    self.place, self._config, self._identity, self._deadlines, self._stager.pin, wants
                )
            return self._session

    def close(self, *, wait: bool = True, together: bool = True) -> None:
        """Ends the session. A second call does nothing.

        Args:
            wait: whether to wait for the saves in flight.
            together: whether the other ranks are about to close too.
        """
        if self._is_forked:
            return
        self._is_closed = True
        if _standalone.get(_key(self._config)) is self:
            del _standalone[_key(self._config)]
        elastic_event.forget(self)
        self._leave_slots()
        self._warn_of_no_step()
        with self._lock:
            if self._session:
                self._session.close(wait=wait)
                self._failed_saves = self._session.failed_saves
                self._session = None
            if self._cadence:
                self._cadence.close()
                self._cadence = None
            self._stager.close()
            if self._agents:
                self._agents.close(together=together)

    def _warn_of_no_step(self) -> None:
        """Two projects of one namespace: the second one finds the training of the first one at its end."""
        line = self._only_loaded.save.line if self._only_loaded and self._only_loaded.save else FIRST
        ours = self.place.owner.script
        is_namesake = line.script != ours and os.path.basename(line.script) == os.path.basename(ours)
        if self._only_loaded and self._agents and is_namesake and self.rank == 0:
            text = "no step was made: step %d of namespace %s was loaded, saved by %s. Is it another project's?"
            log.warning(text, self._only_loaded.step, self._config.namespace, line.whose)

    def let_go(self) -> None:
        """Detaches a process that was forked from this one: it takes no part in the checkpoints, whatever it calls."""
        self._lock = threading.RLock()  # another thread may have held it
        self._is_forked = True
        self._end_delay()
        drop_descriptors_below(self.place.ram_dir)
        self._session = self._cadence = None
        self._leave_slots()

    def _leave_slots(self) -> None:
        if _saving.get(self._slots) is self:
            del _saving[self._slots]


def _number_of(name: Any, value: Any) -> float:
    """A metric's value: a number, or a tensor or array with one element. Raises StateError for anything else."""
    if not is_metric_name(name):
        raise StateError(f"metrics: got the name {name!r:.60}, expected letters, digits and '_.:/-', and not 'n'")
    try:
        if isinstance(value, (str, bytes, bool)):
            raise TypeError("not a number")
        return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise StateError(f"metrics: {name}: got {value!r:.60}, expected a number ({error!s:.80})") from None


def _key(config: CheckpointConfig) -> tuple[str, str]:
    return config.namespace, config.shared.path if config.shared else ""


def _close_earlier(config: CheckpointConfig) -> None:
    """Closes the Checkpointer that an earlier cell of a notebook has left open."""
    if (earlier := _standalone.get(_key(config))) is not None:
        log.warning("namespace %s: the Checkpointer that this process has open is closed", config.namespace)
        earlier.close()


def _identity(env: Mapping[str, str]) -> Identity:
    return Identity(rank=_number(env, "RANK"), local_rank=_number(env, "LOCAL_RANK"))


def _number(env: Mapping[str, str], name: str) -> int:
    text = env.get(name, "0")
    if not text.isdecimal():
        raise ConfigError(f"environment: {name}={text!r}, expected a whole number")
    return int(text)
