"""docs/internals/timeouts.md: every limit that it names has that value in the code, and no limit is left out."""

from __future__ import annotations

import importlib
import re
from dataclasses import fields
from pathlib import Path

import pytest

from ckpt.timeouts import AgentDeadlines, WorkerDeadlines

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/internals/timeouts.md").read_text()
_ROW = re.compile(r"^\| ([0-9.]+) s \|.*\| `([\w.]+):([\w.\[\]\"]+)` \|$", re.MULTILINE)
ROWS = _ROW.findall(PAGE)

# Packages whose limits a user meets, and the constants below them that no user meets: how often a loop looks, and
# limits within another limit.
WATCHED = ("core", "connections", "leadership", "runner", "clusters")
_INTERVAL = re.compile(
    r"(POLL|LOOKS?|AGAIN|PAUSE|EVERY|TICK|SAMPLE|RECONNECT|HEARTBEAT|RENEW|ROUND|INTERVAL)(_AFTER)?_S$"
)
INNER = {
    "connections.handshake_limit:_LEAST_S", "connections.links:_CLOSE_TIMEOUT_S",
    "connections.listener:_NO_DESCRIPTOR_S", "core.attempt:PREDECESSOR_S", 
    "core.nodes:READ_S", "core.requests:SHORT_S", "leadership.lease:_CHECK_S", "leadership.succession:MEETING_S",
    "leadership.succession:_READ_TIMEOUT_S", "runner.activity:_TICKS_PER_S", "runner.runner:_SECRET_TIMEOUT_S",
    "runner.stacks:_SETTLED_S", "runner.warm:_EXIT_BARRIER_S", "clusters.slurm.boosters:_WARNED_S",
    "clusters.local.cluster:_CLOSE_TIMEOUT_S", "clusters.local.cluster:_KILL_NODE_TIMEOUT_S",
    "clusters.slurm.cluster:_CLOSE_TIMEOUT_S", "clusters.slurm.cluster:_FORGET_TIMEOUT_S",
    "clusters.slurm.cluster:_REGISTERING_S", "clusters.slurm.cluster:_REQUEUED_S",
    "clusters.slurm.cluster:_SCRIPT_ENDS_S", "clusters.slurm.checks:_STAT_S",
    "clusters.slurm.submission:_RELEASE_DEADLINE_S",
}  # fmt: skip


@pytest.mark.parametrize(("value", "module", "name"), ROWS, ids=[f"{module}:{name}" for _, module, name in ROWS])
def test_a_limit_on_the_page_is_the_codes(value: str, module: str, name: str) -> None:
    assert eval(name, vars(importlib.import_module(module))) == float(value)


def test_every_row_is_read() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| limit")]
    assert len(rows) == len(ROWS) > 80
    assert len({(module, name) for _, module, name in ROWS}) == len(ROWS)
    assert f"tried {importlib.import_module('ckpt.tiers.s3_client').ATTEMPTS} times" in PAGE


def test_every_deadline_of_agents_and_workers_is_on_the_page() -> None:
    named = {name for _, _, name in ROWS}
    every = {f"{kind.__name__}.{each.name}" for kind in (AgentDeadlines, WorkerDeadlines) for each in fields(kind)}
    assert every - named == set()


def test_every_limit_of_the_launcher_is_on_the_page_or_named_as_inner() -> None:
    named = {f"{module.removeprefix('launcher.')}:{name.partition('[')[0]}" for _, module, name in ROWS}
    found = set()
    for package in WATCHED:
        for file in (ROOT / "launcher" / package).rglob("*.py"):
            module = ".".join(file.relative_to(ROOT / "launcher").with_suffix("").parts)
            constants = re.findall(r"^([A-Z_][A-Z0-9_]*_S)\b *(?::[^=]*)?=", file.read_text(), re.MULTILINE)
            found |= {f"{module}:{name}" for name in constants if not _INTERVAL.search(name)}
    assert found - named - INNER == set(), "add a row to the page, or the name to INNER"
    assert INNER - found == set()
