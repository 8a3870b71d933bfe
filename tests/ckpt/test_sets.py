"""Redundancy sets."""

from __future__ import annotations

import pytest

from ckpt.redundancy.sets import redundancy_sets, set_of


@pytest.mark.parametrize("nodes", range(1, 9))
def test_every_node_is_in_exactly_one_set(nodes):
    sets = redundancy_sets(nodes)
    assert sorted(node for members in sets for node in members) == list(range(nodes))
    assert all(node in set_of(node, sets) for node in range(nodes))
