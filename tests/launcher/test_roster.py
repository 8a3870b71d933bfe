"""Which nodes train: replacements take the place of those they replace."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from launcher.supervisor.roster import Roster


def elastic_roster(count: int, *sizes: int) -> Roster:
    roster = Roster([f"n{i}" for i in range(count)], sizes, {})
    for node in roster.nodes:
        roster.add_ready(node)
    return roster


def ready_roster(count: int, size: int, out: dict[str, str] | None = None) -> Roster:
    roster = Roster([f"n{i}" for i in range(count)], [size], out or {})
    for node in roster.nodes:
        roster.add_ready(node)
    return roster


def test_first_nodes_of_the_allocation_train_and_the_rest_are_spares() -> None:
    roster = ready_roster(4, 2)
    assert roster.choose() == ("n0", "n1")
    assert roster.spares == ["n2", "n3"]


def test_spare_takes_the_position_of_the_lost_node() -> None:
    roster = ready_roster(4, 3)
    roster.choose()
    roster.put_out("n1", "lost")
    assert roster.choose() == ("n0", "n3", "n2")
    assert roster.spares == []


def test_too_few_nodes_is_said() -> None:
    roster = ready_roster(2, 2)
    roster.choose()
    roster.put_out("n0", "lost")
    assert roster.choose() is None
    assert not roster.is_full and not roster.can_suffice


def test_node_that_is_out_stays_out_with_its_first_reason() -> None:
    roster = ready_roster(3, 2)
    roster.put_out("n0", "silent")
    roster.put_out("n0", "again")
    roster.add_ready("n0")
    assert roster.out == {"n0": "silent"}
    assert roster.ready == ["n1", "n2"]


def test_nodes_out_before_a_requeue_are_not_used_and_foreign_ones_forgotten() -> None:
    roster = ready_roster(3, 2, {"n1": "lost", "elsewhere": "lost"})
    assert roster.choose() == ("n0", "n2")
    assert roster.out == {"n1": "lost"}


def test_nodes_that_have_not_come_may_still_suffice() -> None:
    roster = Roster(["n0", "n1", "n2"], [2], {})
    assert roster.absent == ["n0", "n1", "n2"] and roster.can_suffice and roster.choose() is None
    roster.add_ready("n2")
    roster.add_ready("n1")
    assert roster.choose() == ("n1", "n2")


@given(st.integers(1, 6), st.integers(0, 6), st.lists(st.integers(0, 11), max_size=12))
def test_survivors_keep_their_positions_whatever_is_lost(size: int, spares: int, lost: list[int]) -> None:
    roster = ready_roster(size + spares, size)
    before = roster.choose()
    for index in lost:
        node = f"n{index}"
        if node in roster.nodes:
            roster.put_out(node, "lost")
        after = roster.choose()
        if after is None:
            assert len(roster.ready) < size
            return
        assert before is not None and len(set(after)) == size
        assert all(was == now for was, now in zip(before, after, strict=True) if was not in roster.out)
        assert not set(after) & set(roster.out)
        before = after


def test_the_spare_on_the_switch_of_the_lost_node_takes_its_place() -> None:
    switches = {"n0": 0, "n1": 1, "n2": 2, "n3": 2, "n4": 1, "n5": 0}
    roster = Roster(switches, [3], {}, lambda one, other: 1 if switches[one] == switches[other] else 2)
    for node in switches:
        roster.add_ready(node)
    assert roster.choose() == ("n0", "n1", "n2")
    roster.put_out("n1", "lost")
    assert roster.choose() == ("n0", "n4", "n2")
    roster.put_out("n0", "lost")
    roster.put_out("n4", "lost")
    assert roster.choose() == ("n5", "n3", "n2")  # n5 is near n0; what is left goes where it has to


def test_without_a_spare_the_survivors_train_in_their_order() -> None:
    roster = elastic_roster(5, 4, 3, 2)
    assert roster.choose() == ("n0", "n1", "n2", "n3")
    roster.put_out("n1", "lost")
    assert roster.choose() == ("n0", "n4", "n2", "n3") and not roster.has_shrunk
    roster.put_out("n0", "lost")
    assert roster.choose() == ("n4", "n2", "n3") and roster.has_shrunk
    roster.put_out("n2", "lost")
    assert roster.can_suffice and roster.choose() == ("n4", "n3")
    roster.put_out("n3", "lost")
    assert not roster.can_suffice and roster.choose() is None


def test_what_a_step_leaves_over_is_a_spare() -> None:
    roster = elastic_roster(4, 4, 2)
    roster.choose()
    roster.put_out("n0", "lost")
    assert roster.choose() == ("n1", "n2") and roster.spares == ["n3"]
    roster.put_out("n1", "lost")
    assert roster.choose() == ("n3", "n2") and not roster.has_shrunk


@given(st.integers(1, 6), st.integers(0, 2), st.integers(1, 3), st.lists(st.integers(0, 7), max_size=8))
def test_as_many_train_as_the_sizes_allow(nodes: int, spares: int, step: int, lost: list[int]) -> None:
    sizes = range(nodes, 0, -step)
    roster = elastic_roster(nodes + spares, *sizes)
    roster.choose()
    for index in lost:
        roster.put_out(f"n{index}", "lost")
        chosen = roster.choose()
        allowed = [size for size in sizes if size <= len(roster.ready)]
        assert (len(chosen), len(set(chosen))) == (allowed[0],) * 2 if chosen else not allowed
        assert not set(chosen or ()) & set(roster.out)


def test_nodes_to_avoid_make_way_for_spares_in_their_places_and_train_where_none_is_left() -> None:
    roster = Roster(["n1", "n2", "n3", "n4"], [2], {})
    for node in roster.nodes:
        roster.add_ready(node)
    assert roster.choose() == ("n1", "n2")
    assert roster.choose(avoid={"n1"}) == ("n3", "n2")
    assert roster.choose(avoid={"n1", "n3", "n4"}) == ("n3", "n2")
    roster.put_out("n2", "lost")
    assert roster.choose(avoid={"n1", "n3"}) == ("n3", "n4")
    roster.put_out("n4", "lost")
    assert roster.choose(avoid={"n1", "n3"}) == ("n3", "n1")
