"""A worker's session with its node's agent: loads find their step here, and saves their slot.

The session owns the link to the agent, the slots and each save in flight, and keeps them in step.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from ckpt.agent.rpc.client import AgentClient
from ckpt.config import CheckpointConfig, Place
from ckpt.errors import AgentError, CheckpointError, CopyError
from ckpt.format.line import Line
from ckpt.format.shard_record import SaveId
from ckpt.memory.arena import Arena, Slot
from ckpt.native.memcpy import threads_per_rank
from ckpt.timeouts import WorkerDeadlines
from ckpt.worker.descent import Descent, Known
from ckpt.worker.link import AgentLink, Identity, Up
from ckpt.worker.load.shard_reader import SavedStep
from ckpt.worker.save_in_flight import Background, SaveInFlight
from ckpt.worker.slots import Slots, rate

_FOLLOW_S = 1.0  # between looks for events that arrived together with the reply to a request
_REJOIN_POLL_S = 0.05  # between attempts to connect to the agent that replaces a lost one

log = logging.getLogger(__name__)


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
    """One worker's loads and saves with the agents. Saves raise nothing for failures of storage or of the agent."""

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
        self._place, self._identity, self._deadlines = place, identity, deadlines
        self._dropped_away: list[tuple[int, Line]] = []  # steps that were dropped without an agent
        self._closed = threading.Event()
        # Guards link, slots and `_dropped_away` against the follow thread. `_seal` runs without it: nothing else
        # touches its slot, and no other agent is taken up before it has ended.
        self._lock = threading.RLock()
        self._slots = Slots(Arena(place.ram_dir, identity.local_rank, config.slots), identity.rank, pin)
        self._slots.map_newest()  # while the agents plan; the others would slow down the load
        self._link = AgentLink(place, identity, deadlines)
        if wants is not None:
            self._prefetch(wants)
        reply = self._link.agent.request("plan", timeout_s=deadlines.plan_s)
        self._plan = AgreedStep(save=reply["save"], tier=reply["tier"], world_size=reply["world_size"])
        committed = self._slots.committed = reply["committed"]
        number, began_s = reply["next_line"]
        newest = Known(
            save=committed or self._plan.save, is_head=committed is not None or reply["is_head"],
            skipped=bool(reply["skipped"]), next_number=number, began_s=began_s,
        )  # fmt: skip
        seed = f"{place.run_id} {place.attempt}"
        self.descent = Descent(newest, seed, place.owner, speaks=identity.rank == 0)
        self._is_reading = False  # whether the agent may hold fetched shards for this worker
        self._link.generation = reply["generation"]
        for skipped in reply["skipped"]:
            log.warning("rank %d: step %s passed over: %s", identity.rank, skipped["step"], skipped["reason"])
        if reply["notice"] and identity.rank == 0:
            log.warning("namespace %s: %s", config.namespace, reply["notice"])
        self._slots.adopt(newest.save, pinned=reply["pinned"])
        self._stall_s = self._counted_s = 0.0  # held up since the last message, and the time up to which it is counted
        self._sealing = Background("ckpt-seal")
        threading.Thread(target=self._follow, name="ckpt-follow", daemon=True).start()

    @property
    def failed_saves(self) -> int:
        return self._slots.failed

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
            while self._handle_events(wait_s) and isinstance(self._link.state, Up) and self._slots.is_saving:
                wait_s = deadline - time.monotonic()
                if wait_s <= 0:
                    raise AgentError(
                        f"rank {self._identity.rank}: no outcome of the last saves within "
                        f"{self._deadlines.saves_s:g} s; the agent of node {self._place.node} "
                        f"still holds: {self._slots.describe()}"
                    )
            return self._slots.committed.step if self._slots.committed else self._plan.step

    def saved_step(self, step: int) -> SavedStep:
        """The shards of the planned step, or of another one from a tier that has all of them.

        Raises CheckpointError: no tier has all of them.
        """
        self._is_reading = True
        if self._plan.save is not None and step == self._plan.step and self._slots.committed is None:
            return self._saved_step(step, self._plan.world_size, self._plan.tier, self._plan.save)
        try:
            reply = self._link.agent.request("choose", timeout_s=self._deadlines.plan_s, step=step)
        except AgentError as error:
            raise CheckpointError(f"step {step} is not the one restored at the start: {error}") from None
        return self._saved_step(step, reply["world_size"], reply["tier"], reply["save"])

    def best_step(self) -> int:
        """The best step by the metric of `keep_best`; all ranks find the same one after the same saves.

        Raises CheckpointError: no step has the metric, or no tier names one.
        """
        self.newest_step()  # waits for the saves in flight, which may be the best
        try:
            return int(self._link.agent.request("best", timeout_s=self._deadlines.plan_s)["step"])
        except AgentError as error:
            raise CheckpointError(f"best step: {error}") from None

    def map_slots(self) -> None:
        """Maps the existing slots: after a load whose caller does not know yet what it will save."""
        self._slots.map_all()

    def prepare(self, nbytes: int) -> None:
        """Prepares memory for saves of this size."""
        self._slots.prepare(nbytes)

    def _prefetch(self, wants: Callable[[SavedStep], list[Any]]) -> None:
        """Asks the agent to fetch surviving shards before the lost ones are rebuilt.

        Errors show later, in the load itself.
        """
        foreseen = self._link.agent.request("foreseen", timeout_s=self._deadlines.plan_s)
        if foreseen["step"] is None:
            return
        try:
            wanted = wants(self._saved_step(foreseen["step"], foreseen["world_size"]))
        except Exception as error:
            log.debug("rank %d: nothing is prefetched: %s", self._identity.rank, error)
            return
        self._link.agent.send("prefetch", step=foreseen["step"], wants=wanted)

    def _saved_step(self, step: int, world_size: int, tier: str = "", save: SaveId | None = None) -> SavedStep:
        return SavedStep(
            self._link.agent,
            step=step,
            save=save,
            world_size=world_size,
            node=self._place.node,
            open_s=self._deadlines.open_s,
            threads=threads_per_rank(self._place.ranks_per_node),
            mapped=self._slots.mapped,
            tier=tier,
        )

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
            self._link.send("load_ended", **step)

    @contextmanager
    def save(
        self, step: int, nbytes: int, *, tokens: dict[str, int], flush: bool, metrics: dict[str, float], since_s: float
    ) -> Iterator[SaveInFlight | None]:
        """A save, whose slot the `with` block fills and marks as `staged`; None if it was dropped.

        It is passed to the agent once all its bytes are copied. Failures are logged and counted. A step that is not
        larger than the one saved before it fails, unless the script has loaded a step below it.

        Args:
            tokens: those of the groups that share replicas; see ckpt.worker.save.replicas.
            flush: whether to write the step to every lower tier, whatever its cadence.
            metrics: those that the script has given, finite numbers by name.
            since_s: when the script has called, by the monotonic clock: the step is held up from then on.
        """
        try:
            self.loaded()  # what read() returned is read before the next save
            with self._lock:
                save = self._begin(step, nbytes, {"tokens": tokens, "flush": flush, "metrics": metrics})
                if save is None:
                    yield None
                    return
                try:
                    yield save
                except CopyError as error:
                    self._slots.give_back(save.slot)
                    self._drop(step, save.line, str(error))
                    return
                except BaseException:
                    self._slots.give_back(save.slot)
                    self._send_drop("drop_shard", step, save.line, reason="staging failed")
                    raise
                save.message["stall_s"] = self._take_stall(since_s)
                if save.copies is not None or self._sealing.busy:
                    self._sealing.do(partial(self._seal, self._link.agent, save))
                else:
                    self._seal(self._link.agent, save)
                self._slots.prepare(nbytes)  # the other slots will need the memory too
        finally:
            self._stall_s += time.monotonic() - max(since_s, self._counted_s)

    def _begin(self, step: int, nbytes: int, message: dict[str, Any]) -> SaveInFlight | None:
        """A save with a slot of `nbytes`; None if it is dropped."""
        since_s, line = time.monotonic(), self.descent.advance(step)
        if line is None:  # the agent hears nothing: a save of this step may be in flight
            why = "step %d was saved before it; a step must be larger, so count steps over all epochs"
            if step == self.descent.last_step:
                why = "step %d is saved already; save a step once, with flush=True if all lower tiers must have it"
            self._slots.count(f"step %d is dropped: {why}", step, self.descent.last_step)
            return None
        slot, reason = self._take(step)
        if slot is not None:
            try:
                slot.reserve(nbytes)
            except OSError as error:
                self._slots.give_back(slot)
                slot, reason = None, f"no memory for {nbytes} bytes in {self._place.ram_dir}: {error.strerror}"
        if slot is None:
            self._drop(step, line, reason)
            return None
        message["rank"] = self._identity.rank
        return SaveInFlight(step=step, line=line, slot=slot, nbytes=nbytes, message=message, since_s=since_s)

    def _take_stall(self, since_s: float) -> float:
        """For how long saves have held steps up that no message has told yet, this one up to now."""
        self._counted_s = time.monotonic()
        stall_s, self._stall_s = self._stall_s + self._counted_s - since_s, 0.0
        return round(stall_s, 6)

    def _seal(self, agent: AgentClient, save: SaveInFlight) -> None:
        """Passes a staged save to the agent. Runs without the lock, in the thread that waits for its copies."""
        try:
            save.send(agent)
        except (AgentError, CopyError) as error:
            self._slots.give_back(save.slot)
            self._drop(save.step, save.line, str(error))
            return
        if self._identity.rank == 0:
            log.info("saved step %d to memory: %s", save.step, rate(save.nbytes, time.monotonic() - save.since_s))

    def replicas_differ(self) -> bool:
        """Whether a save was dropped because the ranks disagree on what their replicas are."""
        self._handle_events(0.0)
        return self._slots.replicas_differ

    def await_saves(self) -> None:
        """Waits until no save of this node is in flight."""
        self._settle(self._deadlines.saves_s)
        self._await_outcomes()

    def _settle(self, timeout_s: float) -> None:
        if not self._sealing.settle(timeout_s):
            log.warning("rank %d: copies have not ended within %g s", self._identity.rank, timeout_s)

    def _await_outcomes(self, *, closing: bool = False) -> None:
        if self._link.is_gone:
            return
        try:
            self._link.agent.request("await_saves", timeout_s=self._deadlines.saves_s, closing=closing)
            self._handle_events(0.0)
        except AgentError as error:
            log.warning("rank %d: cannot tell whether the last saves are safe: %s", self._identity.rank, error)
            self._link.lose(error)

    def close(self, *, wait: bool) -> None:
        """Disconnects from the agent. Running copies have a moment to end.

        Args:
            wait: whether to wait for the saves in flight, within the deadline.
        """
        self._settle(self._deadlines.saves_s if wait else self._deadlines.slot_s)
        self._link.send("bye")
        if wait:
            self._await_outcomes(closing=True)
        with self._lock:
            self._closed.set()
            self._link.agent.close()

    def _follow(self) -> None:
        """Handles the agent's events in a thread as they arrive, because the next save may be long after.

        The same thread reconnects after the agent is lost, so that training never waits for it.
        """
        while not self._closed.is_set():
            self._link.agent.wait(_FOLLOW_S)
            with self._lock:
                is_lost = not self._closed.is_set() and not self._handle_events(0.0)
            if is_lost:
                self._rejoin()

    def _rejoin(self) -> None:
        """Returns when this worker is connected to the agent that replaces the lost one, or the session is closed."""
        found = None
        while found is None and not self._closed.wait(_REJOIN_POLL_S):
            found = self._link.find_next(lambda: self._sealing.settle(self._deadlines.slot_s))
        if found is None:
            return
        agent, reply = found
        with self._lock:
            if self._closed.is_set():
                agent.close()
            else:
                self._take_up(agent, reply)

    def _take_up(self, agent: AgentClient, reply: dict[str, Any]) -> None:
        """Continues with another agent. Saves in flight with the lost agent are dropped."""
        self._slots.rejoin(reply["save"], pinned=reply["pinned"])
        away_s = self._link.take_up(agent, reply["generation"])
        level = logging.WARNING if self._identity.rank == 0 else logging.DEBUG
        text = "rank %d: saving goes on after %.1f s without an agent; %d saves were dropped"
        log.log(level, text, self._identity.rank, away_s, len(self._dropped_away))
        if self._dropped_away:  # ranks that reconnected earlier may have saved some of these, and wait for this rank
            self._send_drop("drop_up_to", *self._dropped_away[-1])
        self._dropped_away.clear()

    def _take(self, step: int) -> tuple[Slot | None, str]:
        """A free slot, waiting within the deadline; or the reason why there is none."""
        deadline = time.monotonic() + self._deadlines.slot_s
        wait_s = 0.0
        while self._handle_events(wait_s) and isinstance(self._link.state, Up):
            slot = self._slots.take(step)
            if slot is not None:
                return slot, ""
            wait_s = deadline - time.monotonic()
            if wait_s <= 0:
                return (
                    None,
                    f"no slot within {self._deadlines.slot_s:g} s; the agent still holds: {self._slots.describe()}",
                )
        return None, self._link.state.reason

    def _handle_events(self, timeout_s: float) -> bool:
        """Handles the agent's events about earlier saves; False if the agent is gone."""
        with self._lock:
            events = self._link.events(timeout_s)
            for event in events or ():
                self._slots.heed(event)
                if event["event"] == "committed":
                    self.descent.committed(event["save"])
            return events is not None

    def _drop(self, step: int, line: Line, reason: str) -> None:
        self._slots.drops(step)
        self._send_drop("drop_shard", step, line, reason=reason)
        is_away = not isinstance(self._link.state, Up)
        self._slots.dropped_here(step, reason, quietly=is_away)
        if is_away:
            self._dropped_away.append((step, line))

    def _send_drop(self, op: str, step: int, line: Line, **reason: str) -> None:
        self._link.send(op, step=step, rank=self._identity.rank, descent=line.to_json(), **reason)
