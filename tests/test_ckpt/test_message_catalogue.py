"""Every message is in one catalogue, and what is not, or is malformed, is refused there."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, get_args

import pytest
from agent_kit import World, config, run

from ckpt.agent.rpc.messages import (
    BETWEEN,
    OF_RUNNER,
    OF_WORKER,
    TO_LEADER,
    TO_NODE,
    TO_RUNNER,
    WAYS,
    Way,
    check,
    check_answer,
    event,
    serves,
)
from ckpt.agent.rpc.peers import PeerError, Peers
from ckpt.agent.rpc.transport import SoloTransport
from ckpt.errors import AgentError
from ckpt.format.line import FIRST
from ckpt.format.shard_record import SaveId
from ckpt.timeouts import AgentDeadlines, WorkerDeadlines
from holdfast.base.messages import MalformedMessage, plain

CKPT = Path(__file__).parents[2] / "ckpt"
KINDS = [kind for way in WAYS for kind in way.messages.values()]


def names(sender: str, receiver: str) -> set[str]:
    return {op for way in WAYS if (way.sender, way.receiver) == (sender, receiver) for op in way.messages}


def sent(pattern: str, *folders: str) -> set[str]:
    """The names that a call is made with, by the text of some files."""
    texts = [path.read_text() for folder in folders for path in (CKPT / folder).rglob("*.py")]
    return {name for text in texts for name in re.findall(pattern, text)}


def test_every_request_that_agents_serve_for_each_other_is_in_the_catalogue(tmp_path: Path) -> None:
    async def test() -> None:
        async with World(tmp_path, ["a"], 0, config(nvme={"path": str(tmp_path / "nvme")})) as world:
            served = dict(world.agents[0]._peers._handlers)
        expected = names("node", "leader") | names("leader", "node") | names("node", "node")
        rejoin = {"rejoin_verify", "rejoin_adopt", "rejoin_done"}
        assert served.keys() | rejoin == expected

    run(test)


class Twice:
    @serves("gate")
    async def _on_gate(self, source: int) -> None: ...


class OfOtherFields:
    @serves("stop_at")
    async def _on_stop_at(self, source: int, boundary: int, why: str) -> None: ...


def test_a_second_handler_and_one_of_other_fields_are_errors_at_start() -> None:
    peers = Peers(SoloTransport(), ["a"], AgentDeadlines())
    peers.serve(Twice())
    with pytest.raises(ValueError, match=r"Twice\._on_gate: 'gate' has a handler already"):
        peers.serve(Twice())
    with pytest.raises(ValueError, match="takes self, source, boundary, why, expected boundary, self, source"):
        peers.serve(OfOtherFields())


class Answering:
    def __init__(self, answer: dict[str, Any]) -> None:
        self._answer = answer

    @serves("record")
    async def _on_record(self, source: int, save: SaveId, rank: int) -> dict[str, Any]:
        return self._answer


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({}, "record is missing"),
        ({"record": 3}, "record is 3, expected an object"),
        ({"record": {}, "more": 1}, "unknown field more"),
    ],
)
def test_an_answer_that_is_not_as_in_the_catalogue_is_refused(answer: dict[str, Any], reason: str) -> None:
    async def test() -> None:
        peers = Peers(SoloTransport(), ["a"], AgentDeadlines())
        peers.serve(Answering(answer))
        with pytest.raises(PeerError, match=f"node a: malformed answer to 'record': {reason}"):
            await peers.call(0, "record", save=SaveId(step=1, attempt=0, run_id="r"), rank=0)

    run(test)


def test_an_answer_has_the_objects_of_its_types() -> None:
    saves = [SaveId(step=step, attempt=0, run_id="r") for step in (1, 2)]
    assert plain({"saves": saves}) == {"saves": [save.to_json() for save in saves]}
    assert check_answer("flush_list", plain({"saves": saves}), TO_NODE) == {"saves": saves}


def test_an_event_with_an_unknown_field_is_never_sent() -> None:
    assert event("stop_agreed", {"boundary": 3}, TO_RUNNER) == {"event": "stop_agreed", "boundary": 3}
    with pytest.raises(MalformedMessage, match="malformed 'stop_agreed': unknown field why"):
        event("stop_agreed", {"boundary": 3, "why": "?"}, TO_RUNNER)


@pytest.mark.parametrize(("function", "way"), [("_serve_worker", OF_WORKER), ("_serve_monitor", OF_RUNNER)])
def test_every_request_of_workers_and_runners_is_in_the_catalogue(function: str, way: Way) -> None:
    tree = ast.parse((CKPT / "agent" / "agent.py").read_text())
    (found,) = (node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef) and node.name == function)
    served = {case.value.value for case in ast.walk(found) if isinstance(case, ast.MatchValue)}  # type: ignore[attr-defined]
    assert served | ({"staged"} if way is OF_WORKER else set()) == names(way.sender, "agent")


def test_every_event_is_in_the_catalogue() -> None:
    assert sent(r"to_workers\(\s*\"(\w+)\"", "agent") == names("agent", "worker")
    to_runner = sent(r"to_monitors\(\s*\"(\w+)\"", "agent") | {"pong"}
    assert to_runner == names("agent", "runner")


def test_a_name_stands_for_one_message_on_one_hop_and_a_field_for_one_thing() -> None:
    ops = Counter(op for way in WAYS for op in way.messages)
    assert [op for op, count in ops.items() if count > 1] == []
    kinds: dict[str, set[str]] = defaultdict(set)
    for kind in KINDS:
        for name, hint in [*kind.fields.types.items(), *(kind.answer.types.items() if kind.answer else ())]:
            kinds[name].add(str((get_args(hint) or (hint,))[0]))
    assert {name: found for name, found in kinds.items() if len(found) > 1} == {}


def test_every_deadline_is_one_that_a_process_has() -> None:
    known = {field.name for each in (AgentDeadlines, WorkerDeadlines) for field in dataclasses.fields(each)}
    assert {kind.deadline for kind in KINDS if kind.deadline} <= known
    assert all(kind.deadline for way in (TO_NODE, BETWEEN, TO_LEADER) for kind in way.messages.values())
    assert all(kind.summary.endswith(".") and kind.fields.optional <= kind.fields.types.keys() for kind in KINDS)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"op": "nonsense"}, "unknown request 'nonsense' of a worker"),
        ({"op": ["plan"]}, "unknown request"),
        ({}, "unknown request None"),
        ({"op": "stop"}, "unknown request 'stop' of a worker"),
        ({"op": "open", "blocks": None}, "malformed 'open': rank is missing"),
        ({"op": "open", "rank": True, "blocks": None}, "rank is True, expected a whole number"),
        ({"op": "open", "rank": -1, "blocks": None}, "rank is -1, expected a whole number"),
        ({"op": "open", "rank": 0, "blocks": "all"}, "blocks is 'all', expected a list or null"),
        (
            {"op": "drop_shard", "step": 1, "rank": 0, "descent": FIRST.to_json(), "reason": None},
            "reason is None, expected a string",
        ),
    ],
)
def test_an_unknown_or_malformed_request_is_refused_with_the_reason(message: dict[str, Any], reason: str) -> None:
    with pytest.raises(AgentError, match=re.escape(reason)):
        check(message, OF_WORKER)


def test_a_request_may_be_known_on_any_of_some_ways() -> None:
    check({"op": "unused"}, TO_NODE, BETWEEN, TO_LEADER)
    check({"op": "open", "rank": 3, "blocks": [1, 2], "step": 0}, OF_WORKER)
    check({"op": "shutdown", "workers_s": 1}, OF_RUNNER)
    with pytest.raises(AgentError, match="malformed 'shutdown': workers_s is '1', expected a number"):
        check({"op": "shutdown", "workers_s": "1"}, OF_RUNNER)
