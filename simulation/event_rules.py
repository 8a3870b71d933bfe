"""What must be true of the events that stand in the file, in their order."""

from __future__ import annotations

from typing import Any

from launcher.core.attempt import FOLDER_TIMEOUT_S
from launcher.core.boosters import TELL_AGAIN_S
from launcher.core.faults import LOSSES_S
from launcher.core.gains import RAN_S, SUSPECT_AFTER

_ONCE = ("workers_started", "restore", "first_step", "attempt_end")
UNANSWERED = "Slurm does not answer"
NO_SLURMD = "its slurmd does not answer"
LACKS_NODES = "too few nodes are left"  # the same of a requeue
_UNNAMED = "it has ended"  # where the scheduler gives no reason: here it always does
_NOT_COUNTED = ("preflight", "scheduler_lost", "preempted")
_OF_LOST_NODES = ("node_lost", "start_timeout")
_RUNGS = {"resized": ("grow", "spare"), "fault": ("workers", "spare")}  # by outcome; "shrink" is always allowed


class EventRules:
    """Follows the file.

    Args:
        sizes: how many nodes may train.
        most_fruitless: attempts in a row that may gain nothing; None where that cannot be said.
    """

    __slots__ = (
        "_agents",
        "_before",
        "_committed",
        "_decisive",
        "_decisive_s",
        "_failed",
        "_failed_on",
        "_failed_s",
        "_faults",
        "_fruitless",
        "_holders",
        "_is_moved",
        "_left",
        "_most_fruitless",
        "_newest",
        "_newest_at_fault",
        "_newest_before",
        "_newest_since",
        "_nodes",
        "_number",
        "_once",
        "_out",
        "_replaced",
        "_restored",
        "_rungs",
        "_runs",
        "_sizes",
        "_start_s",
        "_unbegun",
        "_unlucky",
        "_unprepared",
        "_waits",
        "_workers_s",
    )  # fmt: skip

    def __init__(self, sizes: tuple[int, ...], most_fruitless: int | None) -> None:
        self._sizes = sizes
        self._most_fruitless = most_fruitless
        self._number = -1
        self._nodes: tuple[str, ...] = ()
        self._holders: tuple[str, ...] = ()
        self._runs = False
        self._is_moved = True  # whether the nodes may differ from the last attempt's without a word
        self._out: set[str] = set()
        self._unprepared: set[str] = set()
        self._replaced: set[str] = set()
        self._left: set[tuple[str, str, str]] = set()
        self._waits: dict[str, tuple[str, float]] = {}  # why a booster waits, as this supervisor has told last
        self._once: set[str] = set()
        self._before = ""  # the last event's name
        self._rungs: tuple[str, ...] = ()  # that the next attempt may have, unless it shrinks; () where all may be
        self._faults: list[str] = []
        self._decisive: list[str] = []  # the first fault of each attempt
        self._agents: tuple[int, bool] = (0, True)  # the newest generation, and whether it is there
        self._committed: dict[str, int] = {}
        self._newest = self._newest_before = self._newest_at_fault = self._newest_since = self._restored = 0
        self._failed: str | None = None  # the node of the attempt's first fault
        self._failed_on: dict[str | None, int] = {}  # failures since the last progress
        self._fruitless = self._unlucky = self._unbegun = 0
        self._start_s = 0.0  # time of the attempt's start
        self._workers_s: float | None = None  # since when the attempt's workers run
        self._failed_s = self._decisive_s = 0.0  # of the attempt's first fault, and of the decisive one before

    def broken_by(self, event: dict[str, Any]) -> str | None:
        """Takes the next event; says what it breaks."""
        name = event["event"]
        check = getattr(self, f"_{name}", None)
        wrong = check(event) if check is not None else None
        self._before = name
        if wrong is None and name in _ONCE and event["attempt"] == self._number:
            wrong = f"a second {name} of attempt {self._number}" if name in self._once else None
            self._once.add(name)
        return wrong

    def runs_again(self) -> None:
        """The job is submitted again in its folder. What it has failed at before does not count if its end is there."""
        if self._before == "job_end":
            if self._is_unjudged:
                self._judge()
                self._faults.append("outcome none")
            self._fruitless = self._unlucky = self._unbegun = 0
            self._newest_before = self._newest_at_fault = self._newest
            self._newest_since = 0
            self._failed_on.clear()
            self._decisive.clear()
            self._decisive_s = 0.0
            self._out.clear()
            self._unprepared.clear()

    @property
    def last_outcome(self) -> str:
        """Of the attempt that ended last."""
        return next((name for name in reversed(self._faults) if name.startswith("outcome ")), "")

    @property
    def _is_unjudged(self) -> bool:
        """Whether the last attempt failed, and its end is not recorded: a take-over or a new start came before."""
        return self._number >= 0 and bool(self._faults) and not self.last_outcome

    @property
    def fruitless(self) -> float:
        """How many attempts in a row gained nothing, or could not begin; four that perhaps gained count as one."""
        return self._begun_fruitless + self._unbegun

    @property
    def _begun_fruitless(self) -> float:
        return self._fruitless - self._unlucky * 0.75

    @property
    def decisive(self) -> list[str]:
        """The kinds of the faults that ended attempts, or kept one from beginning."""
        return self._decisive

    def _job_start(self, event: dict[str, Any]) -> None:
        self._waits.clear()
        if self._is_unjudged:
            self._judge()
            self._faults.append("outcome none")
        own = "start" if self._number < 0 else "requeue"
        self._rungs = ("takeover", own) if self._before == "takeover" else (own,)
        self._is_moved, self._runs = True, False
        self._out -= self._unprepared  # the job's Python may have been mended
        self._unprepared.clear()

    def _takeover(self, event: dict[str, Any]) -> None:
        self._rungs = ("takeover",)
        self._waits.clear()
        self._is_moved = True
        self._runs = self._runs and "workers_started" in self._once  # or it is not continued

    def _attempt_start(self, event: dict[str, Any]) -> str | None:
        number, nodes, rung = event["attempt"], tuple(event["nodes"]), event["rung"]
        before, is_moved = self._nodes, self._is_moved
        self._workers_s, self._start_s = None, event["time"]
        expected, self._rungs = self._rungs, ()
        if expected and rung not in (*expected, "shrink"):
            return f"rung {rung} of attempt {number}, not {expected}"
        if number != self._number + 1:
            return f"attempt {number} after {self._number}"
        if not is_moved and len(nodes) == len(before):
            moved = [node for index, node in enumerate(before) if node in nodes and nodes.index(node) != index]
            if moved:
                return f"{moved} change their places from {before} to {nodes}"
        if self._is_unjudged:
            self._judge()
        self._number, self._nodes, self._runs, self._is_moved = number, nodes, True, False
        self._holders = tuple(event.get("holders") or ())
        self._once.clear()
        self._faults.clear()
        self._committed.clear()
        self._agents = (0, True)
        if len(set(nodes)) != len(nodes) or len(nodes) not in self._sizes:
            return f"attempt {number} on {nodes}, sizes {self._sizes}"
        if self._out & set(nodes):
            return f"attempt {number} on nodes that are out: {self._out & set(nodes)}"
        if self._replaced & set(nodes):
            return f"attempt {number} on nodes that were replaced: {self._replaced & set(nodes)}"
        self._replaced.clear()
        if set(nodes) & set(event["spares"]):
            return f"spares {event['spares']} of attempt {number} on {nodes}"
        if not is_moved and (rung == "shrink") is not (len(nodes) < len(before)):
            return f"rung {rung} from {before} to {nodes}"
        if not is_moved and rung == "grow" and len(nodes) <= len(before):
            return f"rung grow from {before} to {nodes}"
        if set(nodes) & set(event.get("holders") or ()):
            return f"holders {event['holders']} train in {nodes}"
        if not is_moved and rung == "workers" and not set(nodes) >= set(before):
            return f"rung workers from {before} to {nodes}"
        if self._most_fruitless is not None and self._begun_fruitless > self._most_fruitless:
            return f"attempt {number} after {self._begun_fruitless} that gained nothing"
        return None

    def _workers_started(self, event: dict[str, Any]) -> None:
        self._workers_s = event["time"]

    def _attempt_end(self, event: dict[str, Any]) -> str | None:
        if event["attempt"] != self._number or not self._runs:
            return f"the end of attempt {event['attempt']}, which does not run"
        if event["outcome"] == "fault" and not self._faults:
            return f"attempt {event['attempt']} ends by a fault that is not recorded"
        self._runs, self._rungs = False, _RUNGS.get(event["outcome"], ())
        if event["outcome"] == "fault" or any(kind != "stop" for kind in self._faults):
            self._judge()
        self._faults.append(f"outcome {event['outcome']}")
        return None

    def _judge(self) -> None:
        """Takes account of the first fault of an attempt."""
        first = next((kind for kind in self._faults if kind != "stop"), "stop")
        if first in _NOT_COUNTED:
            return
        if first == "stop":  # its supervisor was lost, and Slurm was ending the job
            self._decisive_s = 0.0
            return
        is_same = self._decides(first, self._failed_s)
        if self._newest > self._newest_at_fault:
            self._failed_on.clear()
        self._newest_at_fault = self._newest
        self._failed_on[self._failed] = self._failed_on.get(self._failed, 0) + 1
        if self._newest > self._newest_before:
            self._fruitless = self._unlucky = self._unbegun = 0
        elif not is_same:
            self._fruitless += 1
            has_trained = self._workers_s is not None and self._failed_s - self._workers_s >= RAN_S
            self._unlucky += (has_trained and first == "node_lost") or self._newest_since > self._restored
        self._newest_before = self._newest
        self._newest_since = 0

    def _fault(self, event: dict[str, Any]) -> str | None:
        number, self._rungs = event.get("attempt"), ()
        if number is not None and (number != self._number or not self._runs):
            return f"a fault of attempt {number}, which does not run"
        if number is not None:
            if event["kind"] == "agent_lost" and event["reason"].endswith(": "):
                return "agents did not come up, and it is not said why"
            if event["kind"] == "agent_lost" and "restore" in self._once:
                return f"agents of attempt {number} do not come up, and it has restored"
            if event.get("node") is not None and event["node"] not in (*self._nodes, *self._holders):
                return f"a fault of {event['node']}, which is not in attempt {number}"
            if all(kind == "stop" for kind in self._faults):
                self._failed, self._failed_s = event.get("node"), event["time"]
            self._faults.append(event["kind"])
        elif event["kind"] not in _NOT_COUNTED and not self._is_unjudged:
            is_same = self._decides(event["kind"], event["time"])
            if self._newest > self._newest_before:  # by an attempt that did not fail
                self._newest_before = self._newest
                self._fruitless = self._unlucky = self._unbegun = 0
            else:
                self._unbegun += not is_same
                self._unlucky += not is_same and self._newest_since > self._restored
            self._newest_since = 0
        return None

    def _decides(self, kind: str, time_s: float) -> bool:
        """Takes account of a decisive fault. Whether it is the same loss of nodes as the one before."""
        is_near = time_s - self._decisive_s <= LOSSES_S
        is_same = is_near and {kind, *self._decisive[-1:]} <= {*_OF_LOST_NODES}
        self._decisive.append(kind)
        self._decisive_s = time_s
        return is_same

    def _problem(self, event: dict[str, Any]) -> str | None:
        if event["what"] == "no booster can be asked for" and event["detail"] != UNANSWERED:
            return "no booster can be asked for, and that is not why"
        if "a spare takes its place" not in event["what"]:
            return None
        self._replaced.add(event["node"])
        failures = self._failed_on.get(event["node"], 0)
        if self._most_fruitless is not None and failures < SUSPECT_AFTER:
            return f"{event['node']} is replaced after {failures} failures since the last progress"
        return None if event["node"] in self._nodes else f"{event['node']} is replaced, and did not train"

    def _stop_requested(self, event: dict[str, Any]) -> str | None:
        self._faults.append("stop")
        if "no checkpoint agents come up" in event.get("detail", "") and self._decisive[-2:] != ["agent_lost"] * 2:
            return f"no agents come up, and the last faults were {self._decisive[-2:]}"
        return None

    def _restore(self, event: dict[str, Any]) -> None:
        step = event.get("step") or 0
        if step > self._restored:
            self._restored, self._fruitless, self._unlucky, self._unbegun = step, 0, 0, 0

    def _agents_lost(self, event: dict[str, Any]) -> str | None:
        before, self._agents = self._agents, (event["generation"], False)
        return (
            f"agents of generation {event['generation']} are lost after {before[0]}"
            if before[0] > event["generation"]
            else None
        )

    def _agents_back(self, event: dict[str, Any]) -> str | None:
        (newest, is_there), self._agents = self._agents, (event["generation"], True)
        if event["generation"] > newest or (event["generation"] == newest and not is_there):
            return None
        return f"agents of generation {event['generation']} are back after {newest}, there={is_there}"

    def _commit(self, event: dict[str, Any]) -> str | None:
        step, tier = event["step"], event["tier"]
        self._newest = max(self._newest, step)
        self._newest_since = max(self._newest_since, step)
        if event["attempt"] != self._number:
            return f"a commit of attempt {event['attempt']}, which does not run"
        if step <= self._committed.get(tier, -1):
            return f"step {step} is committed again in {tier}"
        self._committed[tier] = step
        return None

    def _node_out(self, event: dict[str, Any]) -> str | None:
        node = event["node"]
        if node in self._out:
            return f"{node} is out already"
        self._out.add(node)
        if event.get("environment") or event.get("cause") == "drained":
            self._unprepared.add(node)
        if self._runs and node in self._nodes:
            is_given_up = self._workers_s is None and event["time"] - self._start_s >= FOLDER_TIMEOUT_S
            is_explained = "not confirm" in event["reason"] or "not end" in event["reason"]
            if not (self._faults or is_given_up or is_explained):
                return f"{node} of attempt {self._number} is out before its fault"
        elif not self._runs:
            self._is_moved = True
        return None

    def _node_leaving(self, event: dict[str, Any]) -> str | None:
        self._is_moved = self._is_moved or not self._runs
        if event.get("allocation") is None:
            return self._is_left(event)
        end = event["event"], event["allocation"], event.get("node", "")
        if end in self._left:
            return f"{end} again"
        self._left.add(end)
        return None if event["reason"] not in ("", _UNNAMED) else "the scheduler's reason is not passed on"

    _booster_leaving = _booster_end = _node_leaving

    def _is_left(self, event: dict[str, Any]) -> str | None:
        """A spare takes the place of a node that is drained, or has had an incident."""
        node = event["node"]
        if node in self._out:
            return f"{node} is left, and is out"
        if event.get("attempt") is not None and (not self._runs or node not in self._nodes):
            return f"{node} is left, and trains not"
        return None if event["cause"] in ("drained", "incident") and event["reason"] else "a node is left without cause"

    def _booster_waits(self, event: dict[str, Any]) -> str | None:
        before = self._waits.get(event["allocation"])
        self._waits[event["allocation"]] = event["reason"], event["time"]
        if before is not None and (before[0] == event["reason"] or event["time"] - before[1] < TELL_AGAIN_S - 1.0):
            return f"told again: {before}"
        return None

    def _node_back(self, event: dict[str, Any]) -> str | None:
        if event["node"] not in self._out:
            return f"{event['node']} is back and was not out"
        self._out.discard(event["node"])
        return None
