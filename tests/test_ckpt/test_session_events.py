"""Two threads of a worker take events from its agent: neither may take one that the other waits for."""

import threading
from types import SimpleNamespace
from typing import Any

from ckpt.memory.arena import Use
from ckpt.worker.link import AgentLink, Up
from ckpt.worker.session import Session


class OneOutcome:
    """An agent that has the outcome of one save, and nothing after it."""

    def __init__(self) -> None:
        self.arrived: list[dict[str, Any]] = []
        self.outcome = {"event": "dropped", "step": 7, "reason": "test"}
        self.waited_for_nothing = False

    def events(self, timeout_s: float) -> list[dict[str, Any]]:
        if not self.arrived:
            self.waited_for_nothing |= timeout_s > 0
            return []
        taken, self.arrived = self.arrived, []
        return taken


def test_the_follow_thread_cannot_take_an_outcome_between_the_look_and_the_wait_for_it() -> None:
    agent, slot = OneOutcome(), SimpleNamespace(use=Use.IN_FLIGHT)
    link: Any = object.__new__(AgentLink)
    link.state, link.agent = Up(), agent
    session: Any = object.__new__(Session)
    session._lock, session._link = threading.RLock(), link
    session._deadlines, session._settle = SimpleNamespace(saves_s=60.0), lambda timeout_s: None
    session._plan = SimpleNamespace(step=6)
    session._identity, session._place = SimpleNamespace(rank=0), SimpleNamespace(node="n0")

    class Watched:
        committed, describe = None, staticmethod(lambda: "")

        def heed(self, event: dict[str, Any]) -> None:
            slot.use = Use.FREE

        @property
        def is_saving(self) -> bool:
            return look()

    def follow() -> None:  # what the follow thread does, where the lock lets it
        if session._lock.acquire(blocking=False):
            session._handle_events(0.0)
            session._lock.release()

    def look() -> bool:
        is_saving = slot.use is Use.IN_FLIGHT
        if is_saving and not agent.arrived:
            agent.arrived = [agent.outcome]
            thief = threading.Thread(target=follow)
            thief.start()
            thief.join()
        return is_saving

    session._slots = Watched()
    assert session.newest_step() == 6
    assert not agent.waited_for_nothing
