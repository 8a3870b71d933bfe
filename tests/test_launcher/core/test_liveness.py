"""Which connections count, which nodes are lost or in doubt, and when a supervisor doubts itself."""

from __future__ import annotations

import pytest

from launcher.core.inputs import IsolationChanged, NodeLost, StoodStill
from launcher.core.liveness import (
    ISOLATED_S,
    PAUSE_S,
    RETURN_S,
    SILENCE_S,
    SUSPECT_S,
    TICK_S,
    Action,
    Drop,
    Forget,
    Liveness,
    Peer,
    Promote,
    may_be_cut_off,
)


class Bench:
    """Connections of nodes n0, n1, ... at a time that the test moves on."""

    def __init__(self, count: int, boosters: int = 0) -> None:
        self.now_s = 1000.0
        self.base = [f"n{number}" for number in range(count)]
        self.boosters = [f"b{number}" for number in range(boosters)]
        self.liveness: Liveness[Peer] = Liveness(self.base, "7", self.base[1:])
        self.peers = {node: self.join(node, "7") for node in self.base}
        self.peers |= {node: self.join(node, "8") for node in self.boosters}

    def join(self, node: str, allocation: str) -> Peer:
        peer = Peer(node, allocation, self.now_s)
        assert self.liveness.join(peer) == []
        return peer

    def passes(self, seconds: float, *, silent: tuple[str, ...] = ()) -> list[Action[Peer]]:
        """Ticks while the nodes that are not silent are heard."""
        actions: list[Action[Peer]] = []
        for _ in range(round(seconds / TICK_S)):
            ran_s, self.now_s = self.now_s, self.now_s + TICK_S
            for peer in (*self.liveness.peers.values(), *self.liveness.seconds.values()):
                if peer.node not in silent:
                    peer.heard_s = self.now_s
            actions += self.liveness.tick(self.now_s, ran_s)
        return actions

    def stands_still(self, seconds: float) -> list[Action[Peer]]:
        ran_s, self.now_s = self.now_s, self.now_s + seconds
        return self.liveness.tick(self.now_s, ran_s)

    def closes(self, node: str) -> list[Action[Peer]]:
        return self.liveness.closed(self.peers[node], self.now_s, self.now_s)


def lost(actions: list[Action[Peer]]) -> list[str]:
    return [action.node for action in actions if isinstance(action, NodeLost)]


def test_a_silent_node_is_lost_after_the_silence_and_its_connection_is_dropped() -> None:
    bench = Bench(3)
    assert bench.passes(SILENCE_S - TICK_S, silent=("n2",)) == []
    found = bench.passes(3 * TICK_S, silent=("n2",))
    assert lost(found) == ["n2"] and Drop(peer=bench.peers["n2"]) in found and Forget(node="n2") in found
    assert bench.passes(10.0) == []


def test_a_connection_that_closes_is_a_lost_node_at_once() -> None:
    bench = Bench(3)
    reason = "the connection to its runner closed"
    assert bench.closes("n1") == [Forget(node="n1"), NodeLost(node="n1", reason=reason, detect_s=0.0)]


@pytest.mark.parametrize("silent", [1, 2])
def test_only_nodes_of_the_base_count_for_the_doubt_of_the_supervisor(silent: int) -> None:
    """Boosters may all end at once: of three and four boosters, four are silent, and no node of the base."""
    bench = Bench(3, boosters=4)
    assert sorted(lost(bench.passes(SILENCE_S + 2 * TICK_S, silent=tuple(bench.boosters)))) == bench.boosters
    bench = Bench(3, boosters=4)
    found = bench.passes(SILENCE_S + 2 * TICK_S, silent=tuple(bench.base[:silent]))
    assert (IsolationChanged(is_isolated=True) in found) is (silent == 2), "boosters that are heard do not count either"


def test_a_supervisor_that_doubts_itself_loses_no_node_until_another_could_have_taken_over() -> None:
    bench, silent = Bench(3), ("n1", "n2")
    found = bench.passes(SUSPECT_S + ISOLATED_S - TICK_S, silent=silent)
    assert found == [IsolationChanged(is_isolated=True)]
    assert sorted(lost(bench.passes(1.0, silent=silent))) == ["n1", "n2"]


def test_a_doubt_ends_when_the_nodes_are_heard_again() -> None:
    bench = Bench(3)
    bench.passes(5.0, silent=("n1", "n2"))
    assert bench.passes(1.0) == [IsolationChanged(is_isolated=False)]


def test_nodes_that_are_awaited_after_a_take_over_count_as_silent() -> None:
    bench = Bench(1)
    bench.liveness = Liveness(["n0", "n1", "n2"], "7")
    bench.join("n0", "7")
    bench.liveness.await_return(["n0", "n1", "n2"], bench.now_s)
    assert bench.passes(SUSPECT_S + TICK_S) == [IsolationChanged(is_isolated=True)]
    bench.join("n1", "7")
    assert bench.passes(TICK_S) == [IsolationChanged(is_isolated=False)]


@pytest.mark.parametrize(
    ("seconds", "is_reported"), [(0.15, False), (0.5, False), (PAUSE_S, False), (PAUSE_S + 0.2, True)]
)
def test_a_pause_is_reported_only_if_messages_of_workers_may_wait(seconds: float, is_reported: bool) -> None:
    bench = Bench(3)
    assert any(isinstance(action, StoodStill) for action in bench.stands_still(seconds)) is is_reported


def test_a_pause_makes_no_node_silent() -> None:
    bench = Bench(3)
    assert not lost(bench.stands_still(60.0)) and not bench.liveness.is_isolated


def test_connections_that_close_after_a_pause_are_in_doubt_for_the_time_of_a_return() -> None:
    bench = Bench(5)
    bench.stands_still(SUSPECT_S + TICK_S)
    assert bench.closes("n1") == bench.closes("n2") == []
    assert bench.liveness.is_broken("n1") and "n1" not in bench.liveness.peers
    assert bench.passes(RETURN_S - TICK_S) == []
    bench.join("n1", "7")
    assert lost(bench.passes(1.0)) == ["n2"]


def test_a_connection_that_closes_before_the_first_tick_after_a_pause_is_in_doubt() -> None:
    bench = Bench(3)
    ran_s, bench.now_s = bench.now_s, bench.now_s + SUSPECT_S + 0.1
    assert bench.liveness.closed(bench.peers["n1"], bench.now_s, ran_s) == []
    assert bench.liveness.is_broken("n1")


def test_the_second_runner_of_a_node_takes_the_place_of_the_first_that_goes() -> None:
    bench = Bench(2, boosters=1)
    second = bench.join("b0", "9")
    assert bench.liveness.peers["b0"] is bench.peers["b0"] and bench.liveness.seconds["b0"] is second
    assert bench.liveness.dismiss("b0", "8") == []
    assert bench.closes("b0") == [Forget(node="b0"), Promote(peer=second)], "a dismissed runner is not lost"
    assert bench.liveness.peers["b0"] is second and not bench.liveness.seconds
    assert bench.liveness.is_dismissed("b0", "8") and not bench.liveness.is_dismissed("b0", "9")


def test_a_dismissed_runner_whose_connection_broke_leaves_its_place_to_the_second() -> None:
    bench = Bench(2, boosters=1)
    bench.stands_still(SUSPECT_S + TICK_S)
    bench.closes("b0")
    second = bench.join("b0", "9")
    assert bench.liveness.dismiss("b0", "8") == [Promote(peer=second)]


def test_a_runner_that_connects_again_replaces_its_old_connection() -> None:
    bench = Bench(2)
    again = Peer("n1", "7", bench.now_s)
    assert bench.liveness.join(again) == [Drop(peer=bench.peers["n1"])]
    assert bench.closes("n1") == [] and bench.liveness.peers["n1"] is again


def test_lost_and_dismissed_nodes_have_no_place_in_the_succession() -> None:
    bench = Bench(5)
    assert [bench.liveness.turn(node) for node in bench.base] == [None, 0, 1, 2, 3]
    bench.closes("n2")
    bench.liveness.dismiss("n3")
    assert [bench.liveness.turn(node) for node in bench.base] == [None, 0, None, None, 1]
    bench.join("n2", "7")
    assert bench.liveness.turn("n2") == 1


def test_nothing_is_lost_once_the_job_ends() -> None:
    bench = Bench(3)
    bench.liveness.close()
    assert bench.closes("n1") == [Forget(node="n1")]


def test_a_host_that_reaches_none_of_several_others_may_be_cut_off_itself() -> None:
    assert may_be_cut_off(("n1", "n2", "n3"), "n1", {"n2", "n3"})
    assert not may_be_cut_off(("n1", "n2", "n3"), "n1", {"n2"})
    assert not may_be_cut_off(("n1", "n2"), "n1", {"n2"}), "one node says nothing of us"
