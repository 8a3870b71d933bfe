"""Which nodes train: replacements take the place of those they replace."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from itertools import product

from core_kit import Play, make_job
from hypothesis import given
from hypothesis import strategies as st

from launcher.core.frozen import replace
from launcher.core.inputs import NodeBroken
from launcher.core.members import Members, Network, Phase, choose, is_usable
from slurm.topology import Switch, Topology


def of_switches(switches: Mapping[str, int]) -> Network:
    """Leaf switches under one other switch."""

    def distance(one: str, other: str) -> int:
        return 1 if switches[one] == switches[other] else 2

    return Network(leaf=lambda node: str(switches[node]), distance=distance)


def plain_places(before: Sequence[str], leaving: Sequence[str], spares: Sequence[str], network: Network) -> list[str]:
    """Where spares go, pair by pair: the plain definition."""
    places, gone, free = list(before), list(leaving), list(spares)
    while gone and free:
        node, spare = min(product(gone, free), key=lambda pair: network.distance(*pair))
        places[places.index(node)] = spare
        gone.remove(node)
        free.remove(spare)
    for node in free:
        nearest = min(range(len(places)), key=lambda at: (network.distance(node, places[at]), -at))
        places.insert(nearest + 1, node)
    return places


class Nodes:
    """n0, n1, ..., from which nodes are chosen attempt after attempt."""

    def __init__(self, count: int, *sizes: int, network: Network | None = None) -> None:
        self.order = tuple(f"n{index}" for index in range(count))
        self._sizes = sizes
        self._network = network or Network()
        self.members = Members.joining(self.order, {})
        self.positions: tuple[str, ...] = ()
        self.has_shrunk = False
        self.set(Phase.READY, *self.order)

    def set(self, phase: Phase, *nodes: str) -> None:
        for node in nodes:
            self.members = self.members.put(node, replace(self.members[node], phase=phase))

    def lose(self, *nodes: str) -> None:
        self.set(Phase.OUT, *nodes)

    def choose(self, avoid: Collection[str] = ()) -> tuple[str, ...] | None:
        chosen = choose(self.order, self.members, self.positions, self._sizes, self._network, avoid)
        if chosen is None:
            return None
        self.positions, self.has_shrunk = chosen.nodes, chosen.has_shrunk
        return chosen.nodes

    @property
    def usable(self) -> list[str]:
        return [node for node in self.order if is_usable(self.members[node])]

    @property
    def spares(self) -> list[str]:
        return [node for node in self.usable if node not in self.positions]


def test_first_nodes_of_the_allocation_train_and_the_rest_are_spares() -> None:
    nodes = Nodes(4, 2)
    assert nodes.choose() == ("n0", "n1")
    assert nodes.spares == ["n2", "n3"]


def test_spare_takes_the_position_of_the_lost_node() -> None:
    nodes = Nodes(4, 3)
    nodes.choose()
    nodes.lose("n1")
    assert nodes.choose() == ("n0", "n3", "n2")
    assert nodes.spares == []


def test_too_few_nodes_is_said() -> None:
    nodes = Nodes(2, 2)
    nodes.choose()
    nodes.lose("n0")
    assert nodes.choose() is None
    assert (nodes.members.usable, nodes.members.joining_count) == (1, 0)


def test_node_that_is_out_stays_out_with_its_first_reason() -> None:
    play = Play(make_job(3, train=2))
    play.begin()
    play.give(NodeBroken(node="n1", reason="silent"), NodeBroken(node="n1", reason="again"))
    play.come()
    assert play.out == {"n1": "silent"}
    assert [event["reason"] for event in play.events("node_out")] == ["silent"]
    assert play.attempt.nodes == ("n2", "n3")


def test_nodes_out_before_a_requeue_are_not_used_and_foreign_ones_forgotten() -> None:
    past = [{"event": "node_out", "node": node, "reason": "lost"} for node in ("n2", "elsewhere")]
    play = Play(make_job(3, train=2), [{"event": "job_start"}, *past])
    play.begin()
    play.come("n1", "n3")
    assert play.attempt.nodes == ("n1", "n3")
    assert play.out == {"n2": "lost"}


def test_nodes_that_have_not_come_may_still_suffice() -> None:
    nodes = Nodes(3, 2)
    nodes.members = Members.joining(nodes.order, {})
    assert nodes.members.joining_count == 3 and nodes.choose() is None
    nodes.set(Phase.READY, "n2", "n1")
    assert nodes.choose() == ("n1", "n2")


def test_a_member_has_the_allocation_of_its_node() -> None:
    members = Members.joining(("n0", "n1"), {"n0": "17", "n1": "18"})
    assert [members[node].allocation for node in ("n0", "n1")] == ["17", "18"]


@given(st.integers(1, 6), st.integers(0, 6), st.lists(st.integers(0, 11), max_size=12))
def test_survivors_keep_their_positions_whatever_is_lost(size: int, spares: int, lost: list[int]) -> None:
    nodes = Nodes(size + spares, size)
    before = nodes.choose()
    for index in lost:
        node = f"n{index}"
        if node in nodes.order:
            nodes.lose(node)
        after = nodes.choose()
        if after is None:
            assert len(nodes.usable) < size
            return
        assert before is not None and len(set(after)) == size
        assert all(was == now for was, now in zip(before, after, strict=True) if was in nodes.usable)
        assert set(after) <= set(nodes.usable)
        before = after


def test_the_spare_on_the_switch_of_the_lost_node_takes_its_place() -> None:
    switches = {"n0": 0, "n1": 1, "n2": 2, "n3": 2, "n4": 1, "n5": 0}
    nodes = Nodes(6, 3, network=of_switches(switches))
    assert nodes.choose() == ("n0", "n1", "n2")
    nodes.lose("n1")
    assert nodes.choose() == ("n0", "n4", "n2")
    nodes.lose("n0", "n4")
    assert nodes.choose() == ("n5", "n3", "n2")  # n5 is near n0; what is left goes where it has to


def test_nodes_that_make_a_world_larger_follow_those_on_their_switch() -> None:
    switches = {"n0": 0, "n1": 1, "n2": 2, "n3": 1, "n4": 0, "n5": 2, "n6": 3}
    nodes = Nodes(7, 7, 6, 2, network=of_switches(switches))
    nodes.lose("n2", "n3", "n4", "n5", "n6")
    assert nodes.choose() == ("n0", "n1")
    nodes.set(Phase.READY, "n2", "n3", "n4", "n5")
    assert nodes.choose() == ("n0", "n4", "n1", "n3", "n2", "n5")
    nodes.set(Phase.READY, "n6")
    assert nodes.choose() == ("n0", "n4", "n1", "n3", "n2", "n5", "n6")


@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from(("before", "leaving", "new"))), min_size=1, max_size=14),
    st.randoms(use_true_random=False),
)
def test_nodes_go_where_the_plain_definition_puts_them(given: list[tuple[int, str]], rng: random.Random) -> None:
    """Some nodes are on no known switch. Leaf switches are under two others, and these under one."""
    at = {f"n{index}": leaf for index, (leaf, _) in enumerate(given)}

    def below(level: int, name: str, *numbers: int) -> Switch:
        nodes = frozenset(node for node, leaf in at.items() if leaf in numbers)
        return Switch(name=name, level=level, nodes=nodes)

    leaves = [below(0, f"leaf{number}", number) for number in range(5)]
    topology = Topology([*leaves, below(1, "left", 0, 1), below(1, "right", 2, 3, 4), below(2, "top", 0, 1, 2, 3, 4)])
    network = Network(leaf=topology.leaf, distance=topology.distance)
    order = tuple(at)
    before = [node for node, (_, role) in zip(order, given, strict=True) if role != "new"]
    rng.shuffle(before)
    role = {node: role for node, (_, role) in zip(order, given, strict=True)}
    members = Members.joining(order, {})
    for node in order:
        phase = Phase.OUT if role[node] == "leaving" else Phase.READY
        members = members.put(node, replace(members[node], phase=phase))
    usable = [node for node in order if role[node] != "leaving"]
    chosen = choose(order, members, tuple(before), (len(usable),), network)
    leaving, spares = [node for node in before if role[node] == "leaving"], [n for n in usable if role[n] == "new"]
    if not before or not usable:
        return
    places = plain_places(before, leaving, spares, network)
    assert chosen is not None and list(chosen.nodes) == [node for node in places if role[node] != "leaving"]


def test_nodes_that_make_a_world_larger_come_last_where_no_switch_is_known() -> None:
    nodes = Nodes(4, 4, 2)
    nodes.lose("n0", "n2")
    assert nodes.choose() == ("n1", "n3")
    nodes.set(Phase.READY, "n0", "n2")
    assert nodes.choose() == ("n1", "n3", "n0", "n2")


def test_without_a_spare_the_survivors_train_in_their_order() -> None:
    nodes = Nodes(5, 4, 3, 2)
    assert nodes.choose() == ("n0", "n1", "n2", "n3")
    nodes.lose("n1")
    assert nodes.choose() == ("n0", "n4", "n2", "n3") and not nodes.has_shrunk
    nodes.lose("n0")
    assert nodes.choose() == ("n4", "n2", "n3") and nodes.has_shrunk
    nodes.lose("n2")
    assert nodes.choose() == ("n4", "n3")
    nodes.lose("n3")
    assert nodes.choose() is None


def test_what_a_step_leaves_over_is_a_spare() -> None:
    nodes = Nodes(4, 4, 2)
    nodes.choose()
    nodes.lose("n0")
    assert nodes.choose() == ("n1", "n2") and nodes.spares == ["n3"]
    nodes.lose("n1")
    assert nodes.choose() == ("n3", "n2") and not nodes.has_shrunk


@given(st.integers(1, 6), st.integers(0, 2), st.integers(1, 3), st.lists(st.integers(0, 7), max_size=8))
def test_as_many_train_as_the_sizes_allow(count: int, spares: int, step: int, lost: list[int]) -> None:
    sizes = range(count, 0, -step)
    nodes = Nodes(count + spares, *sizes)
    nodes.choose()
    for index in lost:
        if index < len(nodes.order):
            nodes.lose(f"n{index}")
        chosen = nodes.choose()
        allowed = [size for size in sizes if size <= len(nodes.usable)]
        assert (len(chosen), len(set(chosen))) == (allowed[0],) * 2 if chosen else not allowed
        assert set(chosen or ()) <= set(nodes.usable)


def test_nodes_to_avoid_make_way_for_spares_in_their_places_and_train_where_none_is_left() -> None:
    nodes = Nodes(4, 2)
    assert nodes.choose() == ("n0", "n1")
    assert nodes.choose(avoid={"n0"}) == ("n2", "n1")
    assert nodes.choose(avoid={"n0", "n2", "n3"}) == ("n2", "n1")
    nodes.lose("n1")
    assert nodes.choose(avoid={"n0", "n2"}) == ("n2", "n3")
    nodes.lose("n3")
    assert nodes.choose(avoid={"n0", "n2"}) == ("n2", "n0")


@given(st.integers(1, 5), st.integers(0, 3), st.lists(st.tuples(st.integers(0, 7), st.booleans()), max_size=8))
def test_nodes_to_avoid_train_only_where_the_others_are_too_few(
    count: int, spares: int, changes: list[tuple[int, bool]]
) -> None:
    sizes = range(count, 0, -1)
    nodes = Nodes(count + spares, *sizes)
    nodes.choose()
    avoid: set[str] = set()
    for index, is_lost in changes:
        node = f"n{index % len(nodes.order)}"
        if is_lost:
            nodes.lose(node)
        else:
            avoid.add(node)
        chosen = nodes.choose(avoid)
        if chosen is None:
            assert not nodes.usable
            return
        good = [node for node in nodes.usable if node not in avoid]
        assert len(chosen) == min(count, len(nodes.usable)), "they make the job no smaller"
        assert len(avoid.intersection(chosen)) == max(0, len(chosen) - len(good))


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(Phase)), max_size=20))
def test_every_member_has_one_phase_and_each_phase_its_count(changes: list[tuple[int, Phase]]) -> None:
    nodes = Nodes(5, 2)
    for index, phase in changes:
        nodes.set(phase, f"n{index}")
        found = [member.phase for member in nodes.members.table.values()]
        assert {each: found.count(each) for each in Phase} == nodes.members.counts
        assert nodes.members.usable == len(nodes.usable)
