"""The slow rank, in played steps: who is named, when, with which part, and who is not."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from statistics import median

import pytest

from launcher.diagnosis.slow_rank import RankTimes, SlowNetwork, SlowRanks, Straggler

FACTOR, STEPS, EACH = 1.1, 50, 5  # the defaults, and the steps of one report
DATA_S, COMPUTE_S, STEP_S = 0.010, 0.070, 0.1

Work = Callable[[int, int], tuple[float, float]]  # rank and step -> seconds of data and compute


class Played:
    """Ranks that report every EACH steps, two on each node. Waits fill the step."""

    def __init__(
        self, ranks: int = 8, seed: int = 1, noise: float = 0.0, switches: dict[str, str] | None = None
    ) -> None:
        self._slow_ranks = SlowRanks(factor=FACTOR, steps=STEPS, switches=switches)
        self._ranks = ranks
        self._random = random.Random(seed)
        self._noise = noise
        self.step = 0
        self.new: list[Straggler] = []
        self.over: list[str] = []
        self.link_s = 0.0  # by which each collective takes longer
        self.networks: list[SlowNetwork | None] = []  # as it changes

    def passes(self, steps: int, work: Work) -> None:
        for _ in range(steps // EACH):
            self.step += EACH
            for rank in range(self._ranks):
                steps = [self._noisy(work(rank, self.step)) for _ in range(EACH)]
                data_s, compute_s = (median(part) for part in zip(*steps, strict=True))
                link_s = self.link_s * max(0.0, self._random.gauss(1.0, self._noise))
                times = RankTimes(rank, EACH, data_s, compute_s, max(0.0, STEP_S - data_s - compute_s) + link_s)
                self._slow_ranks.add(f"n{rank // 2}", times, self.step * STEP_S)
            new, over = self._slow_ranks.look()
            self.new += new
            self.over += over
            if (network := self._slow_ranks.network) is None or not any(self.networks[-1:]):
                self.networks += [network] if any(self.networks[-1:]) is (network is None) else []

    def _noisy(self, work: tuple[float, float]) -> tuple[float, float]:
        data_s, compute_s = (max(0.0, self._random.gauss(1.0, self._noise)) * part_s for part_s in work)
        return data_s, compute_s


def even(rank: int, step: int) -> tuple[float, float]:
    return DATA_S, COMPUTE_S


def slowed(ranks: Iterable[int], *, compute: float = 1.0, data: float = 1.0) -> Work:
    slow = set(ranks)
    return lambda rank, step: (DATA_S * data, COMPUTE_S * compute) if rank in slow else (DATA_S, COMPUTE_S)


@pytest.mark.parametrize("rank", range(8))
@pytest.mark.parametrize(("how", "part"), [({"compute": 1.23}, "compute"), ({"data": 2.6}, "data")])
def test_a_rank_that_works_a_fifth_longer_is_named_within_fifty_steps(
    rank: int, how: dict[str, float], part: str
) -> None:
    played = Played(seed=rank, noise=0.02)
    played.passes(200, even)
    assert not played.new
    played.passes(STEPS, slowed([rank], **how))
    (found,) = played.new
    assert (found.node, found.rank, found.ranks, found.part) == (f"n{rank // 2}", rank, 1, part)
    assert found.factor == pytest.approx(1.2, abs=0.03)
    assert found.excess_s == pytest.approx(0.016, abs=0.003)
    assert found.since_s == pytest.approx(205 * STEP_S, abs=EACH * STEP_S)


def test_it_is_over_once_the_rank_is_as_fast_as_the_others() -> None:
    played = Played(noise=0.02)
    played.passes(100, slowed([3], compute=1.25))
    assert [found.node for found in played.new] == ["n1"]
    played.passes(100, even)
    assert played.over == ["n1"] and len(played.new) == 1


def test_it_is_neither_over_nor_found_again_while_it_is_around_the_limit() -> None:
    played = Played(noise=0.02)
    played.passes(100, slowed([3], compute=1.25))
    played.passes(400, lambda rank, step: even(rank, step) if rank != 3 else (DATA_S, COMPUTE_S * 1.16))
    assert len(played.new) == 1 and not played.over


@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_named_on_a_noisy_machine(seed: int) -> None:
    chance = random.Random(seed)

    def noisy(rank: int, step: int) -> tuple[float, float]:
        spike = 3.0 if chance.random() < 0.1 else 1.0  # one step in ten has an evaluation, a save, a neighbour
        drift = 1.0 + 0.1 * (step // 500 % 2)  # all become slower together
        return DATA_S * (5.0 if chance.random() < 0.05 else 1.0), COMPUTE_S * spike * drift

    played = Played(seed=seed, noise=0.08)
    played.passes(10_000, noisy)
    assert not played.new and not played.networks


def test_unequal_work_by_design_is_no_straggler_until_a_rank_slows_down_itself() -> None:
    stages = (1.0, 1.0, 1.3, 1.3, 1.5, 1.5, 1.7, 1.7)

    def pipeline(rank: int, step: int) -> tuple[float, float]:
        return 0.0, 0.04 * stages[rank]

    played = Played(noise=0.02)
    played.passes(500, pipeline)
    assert not played.new
    played.passes(STEPS, lambda rank, step: (0.0, 0.04 * stages[rank] * (1.25 if rank == 2 else 1.0)))
    (found,) = played.new
    assert found.rank == 2 and found.factor == pytest.approx(1.25, abs=0.05) and found.part == "compute"


def test_of_two_ranks_the_slow_one_is_named() -> None:
    played = Played(ranks=2, noise=0.01)
    played.passes(100, slowed([1], compute=1.3))
    assert [found.rank for found in played.new] == [1]


def test_a_slow_node_is_named_once_with_the_number_of_its_slow_ranks() -> None:
    played = Played(noise=0.01)
    played.passes(100, lambda rank, step: (DATA_S, COMPUTE_S * {2: 1.3, 3: 1.5}.get(rank, 1.0)))
    assert [(found.node, found.rank, found.ranks) for found in played.new] == [("n1", 3, 2)]


def test_a_switch_is_named_if_most_of_its_nodes_are_slow_and_no_node_of_another_is() -> None:
    switches = {"n0": "leaf1", "n1": "leaf1", "n2": "leaf2", "n3": "leaf2", "n4": "leaf2", "n5": "leaf2"}
    played = Played(ranks=12, noise=0.01, switches=switches)
    played.passes(100, slowed(range(4), compute=1.3))
    assert {(found.node, found.switch) for found in played.new} == {("n0", "leaf1"), ("n1", "leaf1")}
    alone = Played(ranks=12, noise=0.01, switches=switches)
    alone.passes(100, slowed(range(2), compute=1.3))
    assert [(found.node, found.switch) for found in alone.new] == [("n0", None)]


def test_what_hardly_lengthens_the_step_is_not_named() -> None:
    played = Played()
    played.passes(100, lambda rank, step: (0.0, 0.002 if rank == 5 else 0.001))
    assert not played.new


def test_one_long_report_names_nobody() -> None:
    played = Played(noise=0.01)
    played.passes(200, lambda rank, step: (DATA_S, COMPUTE_S * (20 if rank == 1 and step % 60 == 0 else 1)))
    assert not played.new


def test_nobody_is_named_before_all_ranks_have_reported_enough_steps() -> None:
    played = Played()
    played.passes(STEPS, slowed([3], compute=2.0))  # of which the first are the warm-up
    assert not played.new
    played.passes(15, slowed([3], compute=2.0))
    assert [found.rank for found in played.new] == [3]


def test_a_network_that_is_slower_than_at_first_is_told_and_no_rank_is_named() -> None:
    played = Played(noise=0.02)
    played.passes(400, even)
    played.link_s = 0.03
    played.passes(STEPS, even)
    (network,) = played.networks
    assert network is not None and not played.new
    assert network.factor == pytest.approx(1.3, abs=0.03) and network.excess_s == pytest.approx(0.03, abs=0.003)
    assert "because communication takes" in str(network)
    played.link_s = 0.0
    played.passes(2 * STEPS, even)
    assert played.networks[1:] == [None], "it is over"


def test_ranks_that_wait_for_a_slow_one_do_not_make_the_network_slow() -> None:
    """The slow rank itself waits for nobody, so it shows how long communication takes."""
    played = Played(noise=0.02)
    played.passes(400, even)

    def later(rank: int, step: int) -> tuple[float, float]:
        return DATA_S, COMPUTE_S * (1.5 if rank == 3 else 1.0)

    played.passes(200, later)
    assert [found.rank for found in played.new] == [3] and not played.networks


def test_longer_communication_in_steps_that_are_not_longer_is_no_slow_network() -> None:
    """Shorter sequences leave less computation behind which communication can hide."""
    played = Played(noise=0.02)
    played.passes(400, even)
    played.passes(200, lambda rank, step: (DATA_S, COMPUTE_S * 0.5))
    assert not played.networks
