"""What the schemes that hold full copies promise, tried on every loss there can be."""

from __future__ import annotations

from itertools import combinations

import pytest

from ckpt.redundancy import scheme_of
from ckpt.sections import RedundancySection

SCHEMES = {
    "none": RedundancySection(scheme="none"), "partner": RedundancySection(scheme="partner"),
    "two copies": RedundancySection(scheme="partner", copies=2),
}  # fmt: skip


def lost_shards(scheme, members, lost):
    """The nodes whose shards no survivor holds."""
    held = {node for node in members if node not in lost}
    held |= {source for node in members if node not in lost for source in scheme.sources(node, members)}
    return set(members) - held


@pytest.mark.parametrize("size", range(1, 7))
@pytest.mark.parametrize("name", SCHEMES)
def test_a_scheme_survives_what_it_says_and_not_every_loss_beyond(name, size):
    scheme, members = scheme_of(SCHEMES[name]), tuple(range(3, 3 + size))
    survives = scheme.survives(members)
    assert survives == min(scheme.promise, size - 1)
    for count in range(survives + 1):
        assert not any(lost_shards(scheme, members, lost) for lost in combinations(members, count))
    assert any(lost_shards(scheme, members, lost) for lost in combinations(members, survives + 1))


@pytest.mark.parametrize("size", range(2, 7))
def test_partner_loses_shards_only_when_neighbours_are_lost(size):
    scheme, members = scheme_of(RedundancySection()), tuple(range(size))
    for count in range(size + 1):
        for lost in combinations(members, count):
            neighbours = {node for node in lost if (node + 1) % size in lost}
            assert lost_shards(scheme, members, lost) == neighbours


@pytest.mark.parametrize("size", range(1, 7))
def test_no_node_needs_its_own_shards(size):
    members = tuple(range(size))
    for peers in SCHEMES.values():
        assert all(node not in scheme_of(peers).sources(node, members) for node in members)
