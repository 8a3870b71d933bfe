"""A supervisor in which something fails that should not: the job ends with a result that says so."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest
from talkers import Talkers, supervised


class CannotStart(Talkers):
    async def start_runners(self, nodes: list[str], environment: Mapping[str, str]) -> None:
        raise RuntimeError("out of luck")


class CannotAsk(Talkers):
    def unusable(self, nodes: Collection[str], allocations: Mapping[str, str]) -> dict[str, str]:
        raise RuntimeError("out of luck")


@pytest.mark.parametrize("cluster", [CannotStart, CannotAsk])
def test_what_fails_beside_the_loop_ends_the_job_with_a_result(tmp_path: Path, cluster: type[Talkers]) -> None:
    outcome, events = supervised(tmp_path, cluster)
    assert outcome.name == "internal" and outcome.reason.startswith("RuntimeError: out of luck; see ")
    assert events[-1]["event"] == "job_end"
    assert json.loads((tmp_path / "job" / "result.json").read_text())["name"] == "internal"
