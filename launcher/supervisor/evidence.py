"""What has been heard of one attempt: which nodes started, ended, failed, and why. It decides nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from launcher.supervisor.faults import (
    AGENT_LOST,
    ENVIRONMENT,
    FABRIC,
    NODE_LOST,
    PROCESS_EXIT,
    RUNNER_LOST,
    Fault,
    WorkerFailure,
)
from launcher.supervisor.hang import HangDetector, RankStack
from launcher.supervisor.host import Host
from launcher.supervisor.links import Notice

AGENT_LOSS_WINDOW_S = 0.5  # an agent that goes, perhaps with its node: judged when the node's loss would be known


class Evidence:
    """Takes the notices of one attempt, and keeps what they say.

    Args:
        number: of the attempt.
        nodes: its nodes in node-rank order.
        host: the supervisor.
        hang: hears of the workers' progress.
        log_dir: the attempt's logs, named in reasons.

    Attributes:
        started, ended, killed: nodes whose workers run, have all ended well, are gone.
        without_handler: nodes whose workers were asked to stop, and do not handle SIGTERM.
        lost: nodes that are gone themselves.
        failures: workers that ended otherwise.
        faults: what else ends the attempt, in the order it was heard.
        fault_time_s: when the first of it was noticed (epoch); 0 before that.
        restored: whether the agents have come up and agreed from where to go on.
        committed_step: the newest step committed in the attempt, in any tier; 0 before the first.
        returned: nodes whose runners have come (back) during the attempt.
        agents_ended: whether the agents' launcher has ended, or, with nobody to tell that, every node's agent.
        stacks: what nodes have told of their workers' stacks.
        generation: of the agents: above 0 for those that took the place of lost ones.
    """

    def __init__(self, number: int, nodes: tuple[str, ...], host: Host, hang: HangDetector, log_dir: Path) -> None:
        self._number = number
        self._nodes = frozenset(nodes)
        self._host = host
        self._hang = hang
        self._log_dir = log_dir
        self._begun_s = time.time()
        self._first_step_seen = False
        self._agents_lost_s: float | None = None  # epoch; None while they are there
        self._has_new_agent_loss = False
        self._agents_back = 0  # the newest generation that came up
        self.generation = 0
        self.restored = False
        self.committed_step = 0
        self.started: set[str] = set()
        self.ended: set[str] = set()
        self.killed: set[str] = set()
        self.without_handler: set[str] = set()
        self.lost: set[str] = set()
        self.failures: list[WorkerFailure] = []
        self.faults: list[Fault] = []
        self.fault_time_s = 0.0
        self.returned: set[str] = set()
        self.agents_ended = False
        self._agents_gone: set[str] = set()
        self._loss_judged = False  # that of the agents that were started last
        self._has_no_launcher = False
        self._committed: dict[Any, int] = {}  # tier -> step, before we came
        self.stacks: dict[str, list[RankStack]] = {}

    @property
    def all_started(self) -> bool:
        return self.started >= self._nodes

    @property
    def all_ended(self) -> bool:
        """Whether all workers have ended well."""
        return self.ended >= self._nodes

    @property
    def is_decisive(self) -> bool:
        """Whether the attempt is over by what has been heard."""
        return bool(self.faults or self.failures) or self.all_ended

    @property
    def has_stopped(self) -> bool:
        """Whether a stop without agents is over: no worker is left that may still end by its own SIGTERM handler."""
        failed = {failure.node for failure in self.failures}
        return bool(self.faults) or self.without_handler | self.ended | failed >= self._nodes

    @property
    def seconds(self) -> float:
        """Since the attempt began."""
        return round(time.time() - self._begun_s, 3)

    def resume(self, events: Iterable[Mapping[str, Any]]) -> None:
        """The attempt was begun by an earlier supervisor; runners will tell again what it may not have heard.

        Args:
            events: what that one has recorded, the attempt's among them.
        """
        self._has_no_launcher = True
        for event in events:
            if event.get("attempt") != self._number:
                continue
            name = event["event"]
            if name == "attempt_start":
                self._begun_s = event["time"]
            self.restored |= name == "restore"
            self._first_step_seen |= name == "first_step"
            if name == "commit":
                self.committed_step = max(self.committed_step, event["step"])
                self._committed[event.get("tier")] = event["step"]
            if name == "agents_lost":  # that supervisor may have started the next ones; ours are the ones after
                self.generation, self._agents_lost_s = event["generation"] + 1, event["time"]
            elif name == "agents_back":
                self.generation = self._agents_back = event["generation"]
                self._agents_lost_s = None
        self._has_new_agent_loss = self._loss_judged = self._agents_lost_s is not None

    def take_agent_loss(self) -> bool:
        """Whether the agents were lost after the restore since this was asked last."""
        is_new, self._has_new_agent_loss = self._has_new_agent_loss, False
        return is_new

    def renew_agents(self) -> int:
        """Others are started in the place of lost agents; returns their generation."""
        self.generation += 1
        self.agents_ended = self._has_no_launcher = self._loss_judged = False
        self._agents_gone.clear()
        return self.generation

    def fault(self, fault: Fault) -> None:
        """Something that ends the attempt."""
        self.faults.append(fault)
        self.fault_time_s = self.fault_time_s or time.time()

    def take(self, notice: Notice) -> None:
        """Takes note of what concerns this attempt."""
        node, body = notice.node, notice.body
        if notice.kind == "lost" and node in self._nodes:
            self.lost.add(node)
            self.fault(Fault(kind=NODE_LOST, node=node, reason=body["reason"], detect_s=body["detect_s"]))
        elif notice.kind == "broken" and node in self._nodes:
            self.lost.add(node)
            kind = ENVIRONMENT if body["environment"] else RUNNER_LOST
            self.fault(Fault(kind=kind, node=node, reason=body["reason"]))
        elif notice.kind == "hello" and node is not None and node in self._nodes - self.lost:
            self._take_return(node, body)
        elif notice.kind == "isolated":
            self._has_no_launcher = True  # of the agents: it was let go
        elif body.get("attempt") != self._number:
            return
        elif notice.kind == "unusable":
            self.take_unusable(body["nodes"])
        elif notice.kind == "agents_ended" and body["generation"] == self.generation:
            self.agents_ended = True
            self._judge_agent_loss_later(notice)
        elif notice.kind == "agent_loss" and body["generation"] == self.generation:
            self._take_agent_loss(node, body.get("reason") or "the checkpoint agents ended")
        elif node is not None:
            self._take_report(notice.kind, node, body)

    def _take_report(self, kind: str, node: str, body: dict[str, Any]) -> None:
        """What a runner says of the attempt."""
        if kind == "heartbeat":
            self._host.see_step(body["step"])
            self._hang.note(node, body["slowest"], body["activity"], time.monotonic(), rank_ended=body["rank_ended"])
        elif kind == "started":
            self.started.add(node)
        elif kind == "first_step" and not self._first_step_seen:
            self._first_step_seen = True
            seconds = round(body["time"] - self._begun_s, 3)
            self._host.record("first_step", attempt=self._number, step=body["step"], seconds=seconds)
        elif kind == "monitor":
            self._take_agent_event(node, body["event"])
        elif kind == "agent_lost":
            self._judge_agent_loss_later(Notice(kind=kind, node=node, body=body))
        elif kind == "agent_ended" and self._has_no_launcher:
            self._agents_gone.add(node)
            self.agents_ended |= self._agents_gone >= self._nodes
        elif kind == "stopping":
            self.without_handler |= set() if body["handled"] else {node}
        elif kind == "ended":
            self._take_end(node, body)
        elif kind == "killed":
            self._take_killed(node, body)
        elif kind == "network":
            self._take_network(node, body["problem"], required=body["required"])
        elif kind == "problem":
            self._host.record("problem", attempt=self._number, node=node, what=body["what"])
        elif kind == "stacks":
            self.stacks[node] = [RankStack.from_report(node, rank) for rank in body["ranks"]]

    def _take_return(self, node: str, body: dict[str, Any]) -> None:
        self.returned.add(node)
        if body.get("attempt") != self._number:
            reason = f"{node}: its workers were ended: no supervisor was heard in time"
            self.fault(Fault(kind=PROCESS_EXIT, node=node, reason=reason))

    def _take_end(self, node: str, body: dict[str, Any]) -> None:
        self._host.see_step(body["step"])
        self.failures += [WorkerFailure.from_report(node, failure) for failure in body["failures"]]
        if body["ok"]:
            self.ended.add(node)
        elif not body["failures"]:
            self.fault(Fault(kind=PROCESS_EXIT, node=node, reason=f"{node}: {body['reason']}"))
        if not self.fault_time_s and self.failures:
            self.fault_time_s = time.time()

    def _take_network(self, node: str, problem: str, *, required: bool) -> None:
        if required:
            self.fault(Fault(kind=FABRIC, node=node, reason=f"{node}: {problem}"))
        else:
            what = "training is slower than it could be (fabric: prefer)"
            self._host.record("problem", attempt=self._number, node=node, what=what, detail=problem)

    def _take_killed(self, node: str, body: dict[str, Any]) -> None:
        if body["left"]:
            reason = f"processes {body['left']} do not end (uninterruptible sleep); reboot the node"
            self._host.put_out(node, reason)
        self._host.see_step(body["step"])
        self.killed.add(node)

    def _take_agent_event(self, node: str, event: dict[str, Any]) -> None:
        name = event.get("event")
        fields = {key: value for key, value in event.items() if key != "event"} | {"attempt": self._number}
        if name == "restore_plan":
            if self.restored:
                return  # told again
            self.restored = True
            self._host.record("restore", **fields)
        elif name == "rejoined":
            self._take_agents_back(event)
        elif name == "commit":
            if event["step"] <= self._committed.get(event.get("tier"), -1):
                return  # told again
            self.committed_step = max(self.committed_step, event["step"])
            self._host.see_step(event["step"])
            self._host.record("commit", **fields)
        elif name in ("problem", "rebuilt", "stop_agreed"):
            self._host.record(name, **fields, node=node)

    def take_unusable(self, nodes: Mapping[str, str]) -> None:
        """Nodes on which no agent can be started, with the reason."""
        for node, reason in nodes.items():
            self.lost.add(node)
            self._host.put_out(node, reason)
            self.fault(Fault(kind=AGENT_LOST, node=node, reason=f"no checkpoint agent on {node}: {reason}"))

    def _judge_agent_loss_later(self, notice: Notice) -> None:
        later = Notice(kind="agent_loss", node=notice.node, body=notice.body)
        asyncio.get_running_loop().call_later(AGENT_LOSS_WINDOW_S, self._host.post, later)

    def _take_agents_back(self, event: Mapping[str, Any]) -> None:
        generation = event["generation"]
        if generation <= self._agents_back or generation != self.generation:
            return  # told again, or lost again
        self._agents_back = generation
        since_s = self._agents_lost_s or time.time()
        self._agents_lost_s = None
        fields = {"step": event["step"], "seconds": round(time.time() - since_s, 3), "generation": generation}
        self._host.record("agents_back", attempt=self._number, **fields)

    def _take_agent_loss(self, node: str | None, reason: str) -> None:
        if self.is_decisive or self._loss_judged or self._host.requests.cancelled:
            return
        self._loss_judged = True
        if self.restored:  # training goes on; others take their place
            self._agents_lost_s = self._agents_lost_s or time.time()
            lost = {"generation": self.generation, "reason": reason}
            self._host.record("agents_lost", attempt=self._number, node=node, **lost)
            self._has_new_agent_loss = True
        else:
            self.fault(Fault(kind=AGENT_LOST, node=node, reason=f"{reason} (see {self._log_dir / 'agents.log'})"))
