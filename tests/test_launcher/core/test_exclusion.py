"""A requeued job does not get nodes that are out of use, as long as it has enough others to start."""

from __future__ import annotations

from collections.abc import Collection

from launcher.core.exclusion import Exclusion, exclusion

THERE = ("n1", "n2", "n3", "n4", "n5")


def choose(*out: str, usable: Collection[str] = THERE, wanted: int = 3) -> Exclusion:
    return exclusion(out, before=("n5",), there=THERE, usable=lambda: usable, least=2, wanted=wanted)


def test_nodes_that_are_out_are_excluded_beside_those_that_the_user_excluded() -> None:
    assert choose("n2") == Exclusion(nodes=frozenset({"n2", "n5"}), left=3)


def test_a_node_that_fills_the_place_of_a_spare_is_kept_the_available_ones_first() -> None:
    assert choose("n2", "n3") == Exclusion(nodes=frozenset({"n3", "n5"}), left=2, kept=("n2",))
    assert choose("n2", "n3", usable=("n3",)).kept == ("n3",)


def test_what_the_user_excluded_is_never_kept() -> None:
    found = choose("n1", "n2", wanted=9)
    assert (found.left, found.kept, found.nodes) == (2, ("n1", "n2"), {"n5"})


def test_a_job_with_too_few_other_nodes_gets_none_of_those_that_are_out() -> None:
    assert choose("n1", "n2", "n3") == Exclusion(nodes=frozenset({"n1", "n2", "n3", "n5"}), left=1)
