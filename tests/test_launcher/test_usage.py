"""Node-hours of each account, own and borrowed, from sacct's output."""

from __future__ import annotations

import json
from typing import Any

import pytest

import slurm
from launcher.cli import main
from launcher.history.usage import Usage, usage_of
from slurm import SlurmError

# as `sacct --allusers --allocations --parsable2 --format=Account,AllocNodes,ElapsedRaw,JobName%256` of 22.05 prints it
ROWS = """vision|2|3600|va
vision|1|1800|va-booster-of-5-b12
vision|0|0|va-booster-of-5
language|1|7200|lc
language|2|5400|l|c-booster-of-16
language|1|3600|my-booster-of-five
|4|900|wrap
"""


def test_boosters_are_told_from_an_accounts_own_jobs() -> None:
    assert usage_of(ROWS.splitlines()) == [
        Usage(account="language", own_node_h=3.0, borrowed_node_h=3.0, jobs=2, boosters=1),
        Usage(account="vision", own_node_h=2.0, borrowed_node_h=0.5, jobs=1, boosters=1),
        Usage(account="none", own_node_h=1.0, jobs=1),
    ]


def test_what_is_no_row_is_refused_with_the_text() -> None:
    with pytest.raises(SlurmError, match="sacct printed 'Slurm accounting storage is disabled'"):
        usage_of(["Slurm accounting storage is disabled"])


def test_the_command_prints_a_row_for_each_account(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    class Answers:
        def used(self, since: str) -> str:
            asked.append(since)
            return ROWS

    monkeypatch.setattr(slurm, "Slurm", Answers)
    assert main(["usage", "--json"]) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    assert rows[1] == {"account": "vision", "own_node_h": 2.0, "borrowed_node_h": 0.5, "jobs": 1, "boosters": 1}
    assert main(["usage", "--since", "2026-11-01"]) == 0
    assert "language" in capsys.readouterr().out
    assert asked == ["now-7days", "2026-11-01"]
    assert main(["usage", "--since", "yesterday"]) == 2
