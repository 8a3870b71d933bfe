"""The end of an attempt: nothing of it is left running on the nodes that answer."""

from __future__ import annotations

import time
from collections.abc import Callable

from launcher.supervisor.agents import Agents
from launcher.supervisor.evidence import Evidence
from launcher.supervisor.host import Host
from launcher.supervisor.links import Links

KILL_CONFIRM_S = 5.0
AGENT_DRAIN_S = 600.0  # after the last step: what the agents still write is the job's result
AGENT_STOP_S = 3.0  # when stopping to go on later the time is short and memory survives


async def clear(
    number: int,
    nodes: tuple[str, ...],
    *,
    outcome: str,
    host: Host,
    links: Links,
    agents: Agents,
    evidence: Evidence,
) -> None:
    """Ends what runs of an attempt; a node that does not confirm it within KILL_CONFIRM_S is put out.

    Args:
        number: of the attempt.
        nodes: its nodes.
        outcome: how it ended; agents may finish their work where the workers did.
        host, links: the supervisor's.
        agents: its checkpoint agents.
        evidence: what has been heard of it.
    """

    async def wait_until(done: Callable[[], bool], timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while not done():
            notice = await host.next_notice(max(0.0, deadline - time.monotonic()))
            if notice is not None:
                evidence.take(notice)
            elif time.monotonic() >= deadline:
                return False
        return True

    if agents.are_wanted:
        if evidence.all_ended and outcome != "cancelled":
            for node in nodes:
                links.send(node, {"op": "release_agent", "attempt": number})
            drain_s = AGENT_DRAIN_S if outcome in ("done", "halted") else AGENT_STOP_S
            if not await wait_until(lambda: evidence.agents_ended or host.requests.cancelled, drain_s):
                what = f"checkpoint agents still at work {drain_s:g} s after training ended were killed"
                host.record("problem", attempt=number, what=what)
        await agents.kill()
    for node in nodes:
        links.send(node, {"op": "kill", "attempt": number})
    everyone = set(nodes)

    def all_gone() -> bool:
        """Asked at every notice: thousands of nodes are compared only when that can be true."""
        counted = len(evidence.killed) + len(evidence.lost)
        return counted >= len(everyone) and evidence.killed | evidence.lost >= everyone

    if not await wait_until(all_gone, KILL_CONFIRM_S):
        for node in everyone - evidence.killed - evidence.lost:
            host.put_out(node, f"did not confirm the end of its workers within {KILL_CONFIRM_S:g} s")
