"""Times of several rooms that must agree."""

from __future__ import annotations

from launcher.core.liveness import ISOLATED_S, PAUSE_S, RETURN_S, SILENCE_S, SUSPECT_S, TICK_S
from launcher.core.teardown import KILL_CONFIRM_S, RECONNECT_S
from launcher.leadership.succession import MEETING_S, STAGGER_S
from launcher.leadership.terms import LEASE_S, RENEW_S
from launcher.runner.attempt import KILL_TIMEOUT_S
from launcher.runner.runner import FENCE_S, HEARTBEAT_S, LEAVE_S, RECONNECT_EVERY_S, SUPERVISOR_SILENCE_S
from launcher.supervisor.own_checkpoints import LAST_LOOK_S


def test_one_heartbeat_that_is_late_makes_nobody_suspect() -> None:
    assert 2 * HEARTBEAT_S + TICK_S < SUSPECT_S < SILENCE_S


def test_a_lease_that_is_renewed_does_not_run_out() -> None:
    assert 2 * RENEW_S < LEASE_S


def test_another_supervisor_takes_over_before_one_that_is_cut_off_gives_its_nodes_up() -> None:
    """The third candidate too; and its nodes have then ended the workers that it does not hear of."""
    assert SUSPECT_S + 2 * STAGGER_S + MEETING_S + 2 * LEASE_S < ISOLATED_S
    assert SUPERVISOR_SILENCE_S + FENCE_S < ISOLATED_S


def test_a_runner_that_notices_a_dead_connection_by_its_silence_returns_in_time() -> None:
    assert SUPERVISOR_SILENCE_S + RECONNECT_EVERY_S < RETURN_S
    assert PAUSE_S < RETURN_S


def test_a_runner_returns_to_a_supervisor_that_takes_over_before_it_ends_its_workers() -> None:
    assert RETURN_S < FENCE_S


def test_the_end_of_workers_is_awaited_for_a_runner_that_has_to_return_first() -> None:
    assert RETURN_S + KILL_CONFIRM_S < RECONNECT_S


def test_the_end_of_workers_is_awaited_for_longer_than_it_is_held_back() -> None:
    """For a look at what they wrote last."""
    assert KILL_TIMEOUT_S + LAST_LOOK_S < KILL_CONFIRM_S


def test_runners_wait_longer_for_a_supervisor_than_it_may_be_cut_off() -> None:
    assert ISOLATED_S + RETURN_S < LEAVE_S
