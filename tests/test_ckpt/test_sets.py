"""Redundancy sets: every node in one, near the size asked for, spread over failure domains."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt.config import Place
from ckpt.redundancy import members_at
from ckpt.redundancy.sets import most_in_one_domain, redundancy_sets, set_of
from ckpt.sections import RedundancySection


@given(st.integers(1, 80), st.integers(2, 12), st.integers(2, 5), st.lists(st.integers(0, 5), min_size=80, max_size=80))
def test_every_node_is_in_one_set_of_nearly_the_size_asked_for_and_domains_are_spread(nodes, group, smallest, numbers):
    domains = [f"s{number}" for number in numbers[:nodes]]
    sets = redundancy_sets(nodes, group, smallest, domains)
    assert sorted(node for members in sets for node in members) == list(range(nodes))
    assert all(node in set_of(node, sets) for node in range(nodes))
    sizes = [len(members) for members in sets]
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= min(smallest, nodes)
    assert max(sizes) <= max(group, 2 * smallest - 1)
    for members in sets:
        for domain, count in Counter(domains).items():
            assert sum(domains[node] == domain for node in members) <= -(-count // len(sets))
        assert most_in_one_domain(members, domains) == max(Counter(domains[node] for node in members).values())


def test_without_domains_the_last_set_is_balanced_not_left_over():
    assert [len(members) for members in redundancy_sets(9, 8, 2)] == [5, 4]
    assert redundancy_sets(3, 2, 2) == ((0, 1, 2),)  # not a set of one
    assert redundancy_sets(8, 8, 2) == (tuple(range(8)),)


def test_neighbours_in_a_set_are_of_different_domains():
    """So that a partner's copy does not go with its source's switch."""
    domains = ["s1", "s1", "s1", "s2", "s2", "s2"]
    (members,) = redundancy_sets(6, 8, 2, domains)
    assert all(domains[members[i - 1]] != domains[members[i]] for i in range(6))


@pytest.mark.parametrize(("failure_domain", "expected"), [("switch", (0, 2)), ("node", (0, 2))])
def test_a_node_finds_its_set_from_its_environment(failure_domain, expected, tmp_path):
    place = Place(
        run_id="r", attempt=0, node="a", nodes=("a", "b", "c", "d"), ranks_per_node=1, ram_dir=tmp_path,
        domains=("s1", "s1", "s2", "s2"),
    )  # fmt: skip
    members = members_at(place, RedundancySection(scheme="xor", group_size=2, failure_domain=failure_domain))
    assert members == expected


def test_domains_that_are_not_asked_for_do_not_count(tmp_path):
    place = Place(
        run_id="r", attempt=0, node="a", nodes=("a", "b", "c", "d"), ranks_per_node=1, ram_dir=tmp_path,
        domains=("s1", "s2", "s1", "s2"),
    )  # fmt: skip
    assert members_at(place, RedundancySection(group_size=2)) == (0, 2)
    switches = members_at(place, RedundancySection(group_size=2, failure_domain="switch"))
    assert place.domains[switches[0]] != place.domains[switches[1]]
