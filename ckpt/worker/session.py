"""The connection of a worker to its node's agent, and the slots that it stages into."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ckpt.agent.rpc.client import AgentClient
from ckpt.config import CheckpointConfig, Place
from ckpt.errors import AgentError, CheckpointError, CopyError
from ckpt.format.layout import Layout
from ckpt.format.line import Line
from ckpt.format.shard_record import SaveId
from ckpt.memory.arena import Arena, Slot, Use
from ckpt.native.memcpy import threads_per_rank
from ckpt.timeouts import WorkerDeadlines
from ckpt.worker.descent import Descent, Known
from ckpt.worker.load.shard_reader import SavedStep
from ckpt.worker.save.async_copy import Background, Copies

GROW_THREAD, MAP_THREAD = "ckpt-grow", "ckpt-map"
_REMEMBER = 64  # steps
_SHORT_S = 0.001  # no speed is logged for less
_FOLLOW_S = 1.0  # between looks for events that arrived together with the reply to a request
_REJOIN_POLL_S = 0.05  # between attempts to connect to the agent that replaces a lost one

Stage = Callable[[Slot], tuple[Layout, Copies | None]]  # the copies are those still running when it returns

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Identity:
    rank: int
    local_rank: int


@dataclass(frozen=True, kw_only=True)
class AgreedStep:
    """The step that the agents have agreed to restore."""

    save: SaveId | None  # None: no step
    tier: str
    world_size: int

    @property
    def step(self) -> int | None:
        return self.save.step if self.save else None


class Session:
    """A worker's connection to its agent. Saves raise nothing for failures of storage or of the agent."""

    def __init__(
        self, place: Place, config: CheckpointConfig, identity: Identity, deadlines: WorkerDeadlines,
        pin: Callable[[Slot], None], wants: Callable[[SavedStep], list[Any]] | None = None,
    ) -> None:  # fmt: skip
        """Waits for the agent and its plan.

        Args:
            pin: called with each slot whose memory has been prepared.
            wants: returns what a load would read of a step. It is called while lost shards are still being rebuilt.

        Raises:
            AgentError: the agent did not reply in time. The message names it.
        """
        self.failed_saves = 0
        self._place = place
        self._identity = identity
        self._deadlines = deadlines
        self._lost = False  # the agent is gone
        self._hopeless = ""  # why no save can be committed at present; empty if saves work
        self._dropped_here: deque[int] = deque(maxlen=_REMEMBER)  # steps of which this rank staged no shard
        self._away_since_s = 0.0  # when the agent, or its world, was lost
        self._dropped_away = 0  # number of steps dropped without an agent
        self._dropped_last: tuple[int, Line] | None = None  # the last of them
        self._closed = threading.Event()
        self._lock = threading.RLock()  # guards all state that the agent's events change
        self._arena = Arena(place.ram_dir, identity.local_rank, config.slots)
        self._map_in_thread(self._arena.map_newest)  # while the agents plan; the others would slow down the load
        self._agent = self._connect(deadlines.connect_s)
        if wants is not None:
            self._prefetch(wants)
        reply = self._agent.request("plan", timeout_s=deadlines.plan_s)
        self._plan = AgreedStep(save=reply["save"], tier=reply["tier"], world_size=reply["world_size"])
        self._committed = reply["committed"]  # the newest save that this attempt has committed
        number, began_s = reply["next_line"]
        newest = Known(
            save=self._committed or self._plan.save, is_head=self._committed is not None or reply["is_head"],
            skipped=bool(reply["skipped"]), next_number=number, began_s=began_s,
        )  # fmt: skip
        seed = f"{place.run_id} {place.attempt}"
        self.descent = Descent(newest, seed, place.owner, speaks=identity.rank == 0)
        self._is_reading = False  # whether the agent may hold fetched shards for this worker
        self._generation = int(reply["generation"])
        for skipped in reply.get("skipped", []):
            log.warning("rank %d: step %s passed over: %s", identity.rank, skipped["step"], skipped["reason"])
        if reply["notice"] and identity.rank == 0:
            log.warning("namespace %s: %s", config.namespace, reply["notice"])
        self._arena.adopt(newest.save, pinned=reply["pinned"])
        self._grown_bytes = 0
        self._replicas_differ = False
        self._stall_s = self._counted_s = 0.0  # held up since the last message, and the time up to which it is counted
        self._sealing = Background("ckpt-seal")
        self._pin = pin
        threading.Thread(target=self._follow, name="ckpt-follow", daemon=True).start()

    def newest_step(self) -> int | None:
        """The newest step that can be restored; None if there is none.

        Waits for the outcome of this rank's saves in flight. So all ranks find the same step after the same saves.

        Raises:
            AgentError: the outcome is not known in time.
        """
        deadline = time.monotonic() + self._deadlines.saves_s
        self._settle(self._deadlines.saves_s)
        with self._lock:  # from the look to the wait, else the follow thread takes the event that this one waits for
            wait_s = 0.0
            while self._handle_events(wait_s) and not self._hopeless and self._is_saving():
                wait_s = deadline - time.monotonic()
                if wait_s <= 0:
                    raise AgentError(
                        f"rank {self._identity.rank}: no outcome of the last saves within "
                        f"{self._deadlines.saves_s:g} s; the agent of node {self._place.node} "
                        f"still holds: {self._arena.describe()}"
                    )
            return self._committed.step if self._committed else self._plan.step

    def _is_saving(self) -> bool:
        return any(slot.use is Use.IN_FLIGHT for slot in self._arena.slots)

    def saved_step(self, step: int) -> SavedStep:
        """The shards of the planned step, or of another one from a tier that has all of them.

        Raises CheckpointError: no tier has all of them.
        """
        self._is_reading = True
        if self._plan.save is not None and step == self._plan.step and self._committed is None:
            return self._saved_step(step, self._plan.world_size, self._plan.tier, self._plan.save)
        try:
            reply = self._agent.request("choose", timeout_s=self._deadlines.plan_s, step=step)
        except AgentError as error:
            raise CheckpointError(f"step {step} is not the one restored at the start: {error}") from None
        return self._saved_step(step, reply["world_size"], reply["tier"], reply["save"])

    def best_step(self) -> int:
        """The best step by the metric of `keep_best`; all ranks find the same one after the same saves.

        Raises CheckpointError: no step has the metric, or no tier names one.
        """
        self.newest_step()  # waits for the saves in flight, which may be the best
        try:
            return int(self._agent.request("best", timeout_s=self._deadlines.plan_s)["step"])
        except AgentError as error:
            raise CheckpointError(f"best step: {error}") from None

    def map_slots(self) -> None:
        """Maps the existing slots in a thread: after a load whose caller does not know yet what it will save."""
        self._map_in_thread(self._arena.map_ahead)

    def _map_in_thread(self, work: Callable[[], None]) -> None:
        threading.Thread(target=work, name=MAP_THREAD, daemon=True).start()

    def _prefetch(self, wants: Callable[[SavedStep], list[Any]]) -> None:
        """Asks the agent to fetch surviving shards before the lost ones are rebuilt.

        Errors show later, in the load itself.
        """
        foreseen = self._agent.request("foreseen", timeout_s=self._deadlines.plan_s)
        if foreseen["step"] is None:
            return
        try:
            wanted = wants(self._saved_step(foreseen["step"], foreseen["world_size"]))
        except Exception as error:
            log.debug("rank %d: nothing is prefetched: %s", self._identity.rank, error)
            return
        self._agent.send("prefetch", step=foreseen["step"], wants=wanted)

    def _saved_step(self, step: int, world_size: int, tier: str = "", save: SaveId | None = None) -> SavedStep:
        return SavedStep(
            self._agent,
            step=step,
            save=save,
            world_size=world_size,
            node=self._place.node,
            open_s=self._deadlines.open_s,
            threads=threads_per_rank(self._place.ranks_per_node),
            mapped=self._arena.mapped,
            tier=tier,
        )

    def _connect(self, timeout_s: float) -> AgentClient:
        path, who = self._place.socket_path, self._identity
        return AgentClient.connect(path, rank=who.rank, local_rank=who.local_rank, timeout_s=timeout_s)

    def prepare(self, nbytes: int) -> None:
        """Prepares memory for saves of this size in a thread, because the first write to a page is slow."""
        if nbytes > self._grown_bytes:
            self._grown_bytes = nbytes
            threading.Thread(target=self._grow, args=(nbytes,), name=GROW_THREAD, daemon=True).start()

    def _grow(self, nbytes: int) -> None:
        self._arena.grow(nbytes)
        for slot in self._arena.slots:
            self._pin(slot)

    def loaded(self, saved: SavedStep | None = None, seconds: float = 0.0) -> None:
        """Tells the agent that it may free what it fetched for this worker.

        Args:
            saved: the step that the script goes on from; None: it has only read one.
        """
        if saved is not None and saved.save is not None:
            self.descent.took(saved.save, is_load=True)
        if self._is_reading:
            self._is_reading = False
            step = {} if saved is None else {"step": saved.step, "seconds": round(seconds, 6)}
            self._send("load_ended", **step)

    def save(
        self, step: int, nbytes: int, stage: Stage, *, tokens: dict[str, int], flush: bool, metrics: dict[str, float],
        since_s: float,
    ) -> None:  # fmt: skip
        """Stages one save and passes it to the agent once all its bytes are copied. Failures are logged and counted.

        A step that is not larger than the one saved before it fails, unless the script has loaded a step below it.

        Args:
            stage: fills a slot that has at least `nbytes`.
            tokens: those of the groups that share replicas; see ckpt.worker.save.replicas.
            flush: whether to write the step to every lower tier, whatever its cadence.
            metrics: those that the script has given, finite numbers by name.
            since_s: when the script has called, by the monotonic clock: the step is held up from then on.
        """
        try:
            self._save(step, nbytes, stage, {"tokens": tokens, "flush": flush, "metrics": metrics}, since_s)
        finally:
            self._stall_s += time.monotonic() - max(since_s, self._counted_s)

    def _save(self, step: int, nbytes: int, stage: Stage, message: dict[str, Any], since_s: float) -> None:
        self.loaded()  # what read() returned is read before the next save
        with self._lock:
            started = time.monotonic()
            line = self.descent.advance(step)
            if line is None:  # the agent hears nothing: a save of this step may be in flight
                why = "step %d was saved before it; a step must be larger, so count steps over all epochs"
                if step == self.descent.last_step:
                    why = "step %d is saved already; save a step once, with flush=True if all lower tiers must have it"
                self._count(f"step %d is dropped: {why}", step, self.descent.last_step)
                return
            slot, reason = self._take(step)
            if slot is not None:
                try:
                    slot.reserve(nbytes)
                except OSError as error:
                    self._arena.give_back(slot)
                    slot, reason = None, f"no memory for {nbytes} bytes in {self._place.ram_dir}: {error.strerror}"
            if slot is None:
                self._drop(step, line, reason)
                return
            try:
                layout, copies = stage(slot)
            except CopyError as error:
                self._arena.give_back(slot)
                self._drop(step, line, str(error))
                return
            except BaseException:
                self._arena.give_back(slot)
                self._send_drop("drop_shard", step, line, reason="staging failed")
                raise
            message |= {"slot": slot.index, "step": step, "rank": self._identity.rank, "layout": layout.to_json()}
            message |= {"descent": line.to_json(), "stall_s": self._take_stall(since_s)}
            seal = partial(self._seal, self._agent, slot, copies, message, nbytes, started)
            if copies is not None or self._sealing.busy:
                self._sealing.do(seal)
            else:
                seal()
            self.prepare(nbytes)  # the other slots will need the memory too

    def _take_stall(self, since_s: float) -> float:
        """For how long saves have held steps up that no message has told yet, this one up to now."""
        self._counted_s = time.monotonic()
        stall_s, self._stall_s = self._stall_s + self._counted_s - since_s, 0.0
        return round(stall_s, 6)

    def _seal(
        self,
        agent: AgentClient,
        slot: Slot,
        copies: Copies | None,
        message: dict[str, Any],
        nbytes: int,
        started: float,
    ) -> None:
        """Passes a staged save to the agent. Runs without the lock, in the thread that waits for its copies."""
        try:
            if copies is not None:
                copies.wait()
            agent.send("staged", **message)
        except (AgentError, CopyError) as error:
            self._arena.give_back(slot)
            self._drop(message["step"], Line.from_json(message["descent"]), str(error))
            return
        if self._identity.rank == 0:
            log.info("saved step %d to memory: %s", message["step"], rate(nbytes, time.monotonic() - started))

    def replicas_differ(self) -> bool:
        """Whether a save was dropped because the ranks disagree on what their replicas are."""
        self._handle_events(0.0)
        return self._replicas_differ

    def await_saves(self) -> None:
        """Waits until no save of this node is in flight."""
        self._settle(self._deadlines.saves_s)
        self._await_outcomes()

    def _settle(self, timeout_s: float) -> None:
        if not self._sealing.settle(timeout_s):
            log.warning("rank %d: copies have not ended within %g s", self._identity.rank, timeout_s)

    def _await_outcomes(self, *, closing: bool = False) -> None:
        if self._lost:
            return
        try:
            self._agent.request("await_saves", timeout_s=self._deadlines.saves_s, closing=closing)
            self._handle_events(0.0)
        except AgentError as error:
            log.warning("rank %d: cannot tell whether the last saves are safe: %s", self._identity.rank, error)
            self._lose(error)

    def close(self, *, wait: bool) -> None:
        """Disconnects from the agent. Running copies have a moment to end.

        Args:
            wait: whether to wait for the saves in flight, within the deadline.
        """
        self._settle(self._deadlines.saves_s if wait else self._deadlines.slot_s)
        self._send("bye")
        if wait:
            self._await_outcomes(closing=True)
        with self._lock:
            self._closed.set()
            self._agent.close()

    def _follow(self) -> None:
        """Handles the agent's events in a thread as they arrive, because the next save may be long after.

        The same thread reconnects after the agent is lost, so that training never waits for it.
        """
        while not self._closed.is_set():
            self._agent.wait(_FOLLOW_S)
            with self._lock:
                is_lost = not self._closed.is_set() and not self._handle_events(0.0)
            if is_lost:
                self._rejoin()

    def _rejoin(self) -> None:
        """Returns when this worker is connected to the agent that replaces the lost one, or the session is closed."""
        found = None
        while found is None and not self._closed.wait(_REJOIN_POLL_S):
            found = self._find_agent()
        if found is None:
            return
        agent, reply = found
        with self._lock:
            if self._closed.is_set():
                agent.close()
            else:
                self._take_up(agent, reply)

    def _find_agent(self) -> tuple[AgentClient, dict[str, Any]] | None:
        """An agent of a later generation. None if there is none yet, or if a copy into a slot is still running here."""
        try:
            agent = self._connect(0.0)
        except AgentError:
            return None
        try:
            reply = agent.request("rejoin", timeout_s=self._deadlines.plan_s, generation=self._generation)
            if self._sealing.settle(self._deadlines.slot_s):
                return agent, reply
        except AgentError as error:
            log.debug("rank %d: no agent yet: %s", self._identity.rank, error)
        agent.close()
        return None

    def _take_up(self, agent: AgentClient, reply: dict[str, Any]) -> None:
        """Continues with another agent. Saves in flight with the lost agent are dropped."""
        save = reply["save"]
        for step in self._arena.rejoin(save, pinned=reply["pinned"]):
            self._count("step %d was dropped before it was committed: the agents were lost", step)
        self._agent.close()
        self._agent, self._generation, self._committed = agent, reply["generation"], save
        self._lost, self._hopeless = False, ""
        away_s = time.monotonic() - self._away_since_s
        level = logging.WARNING if self._identity.rank == 0 else logging.DEBUG
        text = "rank %d: saving goes on after %.1f s without an agent; %d saves were dropped"
        log.log(level, text, self._identity.rank, away_s, self._dropped_away)
        if self._dropped_last:  # ranks that reconnected earlier may have saved some of these, and wait for this rank
            self._send_drop("drop_up_to", *self._dropped_last)
        self._dropped_last, self._dropped_away = None, 0

    def _take(self, step: int) -> tuple[Slot | None, str]:
        """A free slot, waiting within the deadline; or the reason why there is none."""
        deadline = time.monotonic() + self._deadlines.slot_s
        wait_s = 0.0
        while self._handle_events(wait_s) and not self._hopeless:
            slot = self._arena.take(step)
            if slot is not None:
                return slot, ""
            wait_s = deadline - time.monotonic()
            if wait_s <= 0:
                return (
                    None,
                    f"no slot within {self._deadlines.slot_s:g} s; the agent still holds: {self._arena.describe()}",
                )
        return None, self._hopeless

    def _handle_events(self, timeout_s: float) -> bool:
        """Handles the agent's events about earlier saves; False if the agent is lost."""
        with self._lock:
            if self._lost:
                return False
            try:
                events = self._agent.events(timeout_s)
            except AgentError as error:
                self._lose(error)
                return False
            for event in events:
                self._heed(event)
            return True

    def _heed(self, event: dict[str, Any]) -> None:
        step = event.get("step", 0)
        match event["event"]:
            case "committed":
                self._committed = event["save"]
                self.descent.committed(self._committed)
                self._arena.committed(step, pinned=event["pinned"])
                self._report("in the memory of all nodes", event)
            case "flushed":
                if not event["pinned"]:
                    self._arena.flushed(step)
                if not event["reached"]:
                    self._count("step %d did not reach the %s tier; it is safe in memory", step, event["tier"])
                else:
                    self._report(f"in tier {event['tier']}", event)
            case "flush_dropped" if self._identity.rank == 0:
                tier, older = event["tier"], event["under_way"]
                log.warning("step %d does not go to the %s tier: step %s is still on its way there", step, tier, older)
            case "dropped":
                self._arena.dropped(step)
                self._replicas_differ |= event.get("replicas_differ", False)
                if step not in self._dropped_here:  # else the agent repeats this rank's own report
                    self._count("step %d was dropped before it was committed: %s", step, event["reason"])
            case "world_lost":
                self._despair(event["reason"])

    def _report(self, where: str, event: dict[str, Any]) -> None:
        if self._identity.rank == 0 and "bytes" in event:
            log.info("committed step %d %s: %s", event["step"], where, rate(event["bytes"], event["seconds"]))

    def _send(self, op: str, **fields: object) -> bool:
        if self._lost:
            return False
        try:
            self._agent.send(op, **fields)
        except AgentError as error:
            self._lose(error)
        return not self._lost

    def _lose(self, error: AgentError) -> None:
        self._lost = True
        self._despair(f"the agent of node {self._place.node} is gone: {error}")

    def _despair(self, reason: str) -> None:
        """Notes that no save can be committed until the agents are replaced. Logged once, not for each dropped save."""
        if not self._hopeless:
            log.error("rank %d: saving stops, training goes on: %s", self._identity.rank, reason)
            self._away_since_s = time.monotonic()
        self._hopeless = reason

    def _drop(self, step: int, line: Line, reason: str) -> None:
        self._dropped_here.append(step)
        self._send_drop("drop_shard", step, line, reason=reason)
        if self._hopeless:
            self._dropped_last = step, line
            self._dropped_away += 1
            self.failed_saves += 1
            return
        self._count("step %d is dropped: %s", step, reason)

    def _send_drop(self, op: str, step: int, line: Line, **reason: str) -> None:
        self._send(op, step=step, rank=self._identity.rank, descent=line.to_json(), **reason)

    def _count(self, message: str, *args: object) -> None:
        self.failed_saves += 1
        log.warning("rank %d: " + message, self._identity.rank, *args)


def rate(nbytes: int, seconds: float) -> str:
    """Bytes, seconds and MB/s in the same form for every log line. No speed if the time is too short to measure."""
    if seconds < _SHORT_S:
        return f"{nbytes} bytes in under {_SHORT_S * 1000:g} ms"
    megabytes_s = nbytes / 1e6 / seconds
    return f"{nbytes} bytes in {seconds:.3f} s, {megabytes_s:.{0 if megabytes_s >= 10 else 2}f} MB/s"
