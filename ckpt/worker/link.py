"""A worker's connection to its node's agent, and to the agents that replace it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ckpt.agent.rpc.client import AgentClient
from ckpt.config import Place
from ckpt.errors import AgentError
from ckpt.timeouts import WorkerDeadlines

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Identity:
    rank: int
    local_rank: int


@dataclass(frozen=True, kw_only=True)
class Up:
    """Saves can be committed."""

    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class WorldLost:
    """The node's agent is there and has lost the others: nothing can be committed."""

    reason: str
    since_s: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, kw_only=True)
class Gone:
    """The node's agent is gone. Other agents may replace it."""

    reason: str
    since_s: float = field(default_factory=time.monotonic)


class AgentLink:
    """The connection, and whether saves can be committed over it. The owner of the link guards its calls."""

    def __init__(self, place: Place, identity: Identity, deadlines: WorkerDeadlines) -> None:
        """Waits for the agent. Raises AgentError if it does not listen in time."""
        self._place, self._identity, self._deadlines = place, identity, deadlines
        self.state: Up | WorldLost | Gone = Up()
        self.generation = 0  # of the agents
        self.agent = self._connect(deadlines.connect_s)

    @property
    def is_gone(self) -> bool:
        return isinstance(self.state, Gone)

    def send(self, op: str, **fields: object) -> None:
        """Sends a message. Nothing happens if the agent is gone; a loss is noted."""
        if self.is_gone:
            return
        try:
            self.agent.send(op, **fields)
        except AgentError as error:
            self.lose(error)

    def events(self, timeout_s: float) -> list[dict[str, Any]] | None:
        """The agent's events since the last call; None if it is gone. Notes the loss of the other agents."""
        if self.is_gone:
            return None
        try:
            events = self.agent.events(timeout_s)
        except AgentError as error:
            self.lose(error)
            return None
        for lost in [event for event in events if event["event"] == "world_lost"]:
            self._despair(WorldLost(reason=lost["reason"]))
        return events

    def lose(self, error: AgentError) -> None:
        """The agent does not answer any more."""
        self._despair(Gone(reason=f"the agent of node {self._place.node} is gone: {error}"))

    def _despair(self, state: WorldLost | Gone) -> None:
        """No save can be committed until the agents are replaced. Logged once, not for each dropped save."""
        if isinstance(self.state, Up):
            log.error("rank %d: saving stops, training goes on: %s", self._identity.rank, state.reason)
            self.state = state
        else:
            self.state = type(state)(reason=state.reason, since_s=self.state.since_s)

    def find_next(self, is_ready: Callable[[], bool]) -> tuple[AgentClient, dict[str, Any]] | None:
        """An agent of a later generation and its answer to `rejoin`; None if there is none, or not `is_ready()`."""
        try:
            agent = self._connect(0.0)
        except AgentError:
            return None
        try:
            reply = agent.request("rejoin", timeout_s=self._deadlines.plan_s, generation=self.generation)
            if is_ready():
                return agent, reply
        except AgentError as error:
            log.debug("rank %d: no agent yet: %s", self._identity.rank, error)
        agent.close()
        return None

    def take_up(self, agent: AgentClient, generation: int) -> float:
        """Continues with another agent. Returns for how many seconds saves could not be committed."""
        self.agent.close()
        since_s = time.monotonic() if isinstance(self.state, Up) else self.state.since_s
        self.agent, self.generation, self.state = agent, generation, Up()
        return time.monotonic() - since_s

    def _connect(self, timeout_s: float) -> AgentClient:
        path, who = self._place.socket_path, self._identity
        return AgentClient.connect(path, rank=who.rank, local_rank=who.local_rank, timeout_s=timeout_s)
