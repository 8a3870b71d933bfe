"""docs/internals/state_machine.md is what the simulator shows: `make docs` writes it."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

import pytest

from launcher.core.state import AgentPhase, AttemptPhase, Stage
from simulation.single_faults import FAULTS
from simulation.state_machine import WALK, page, transitions, walk

PAGE = Path(__file__).resolve().parents[2] / "docs" / "internals" / "state_machine.md"


def test_the_page_is_what_the_runs_show() -> None:
    assert PAGE.read_text() == page(), "run `make docs`"


@pytest.mark.parametrize("kind", [Stage, AttemptPhase, AgentPhase])
def test_every_stage_and_phase_is_reached_by_a_single_fault(kind: type[Enum]) -> None:
    reached = {after for _, after in transitions()}
    starts = {Stage.ASKING, AttemptPhase.RETURNING, AgentPhase.NONE}  # of a job, a take-over, an attempt
    assert set(kind) - reached - starts == set()


def test_the_walk_goes_from_the_lost_node_to_the_next_step_with_its_events_in_order() -> None:
    steps = walk(FAULTS[WALK][0])
    assert (steps[0].given, steps[-1].given) == ("NodeLost", "FirstStep")
    events = [event for step in steps for event in step.events]
    assert events == [
        *("fault", "node_out", "attempt_end", "attempt_start"),
        *("restore", "workers_started", "first_step"),
    ]
