"""The supervisor's node trains last, its predecessor follows it last, and the next start keeps the base's memory."""

from __future__ import annotations

import pytest

from launcher.core.ending import dismissals
from launcher.core.outcomes import JobOutcome
from launcher.core.succession import has_begun, successors, training_order

NODES = ("n1", "n2", "n3", "n4")


def test_the_supervisors_node_trains_last() -> None:
    assert training_order(NODES, "n2") == ("n1", "n3", "n4", "n2")
    assert training_order(NODES, None) == NODES


@pytest.mark.parametrize(
    ("own", "predecessor", "expected"),
    [
        ("n2", None, ("n1", "n3", "n4")),
        ("n2", "n1", ("n3", "n4", "n1")),  # the predecessor's node may be lost
        (None, None, ()),
    ],
)
def test_the_other_nodes_follow_the_supervisor_and_its_predecessor_last(
    own: str | None, predecessor: str | None, expected: tuple[str, ...]
) -> None:
    assert successors(NODES, own, predecessor) == expected


def test_events_of_an_earlier_start_are_not_those_of_this_one() -> None:
    first, second = {"event": "job_start"}, {"event": "job_start", "restart_count": 1}
    ready = {"event": "node_ready", "node": "n1"}
    assert has_begun([first, ready], 0) and has_begun([first, second, ready], 1)
    assert not has_begun([first, ready], 1) and not has_begun([], 0)


@pytest.mark.parametrize(("outcome", "of_base"), [(JobOutcome.STOPPED, False), (JobOutcome.DONE, True)])
def test_only_a_job_that_goes_on_keeps_its_memory_and_only_on_nodes_of_its_base(
    outcome: JobOutcome, of_base: bool
) -> None:
    assert dismissals(outcome, ("n1", "n2"), ("n1", "b1")) == {"n1": of_base, "n2": of_base, "b1": True}
