"""Random number generators continue where they were."""

from __future__ import annotations

import random

import numpy as np
import torch

from ckpt.format.json_values import decode, encode
from holdfast.rng import RngMoment, RngState


def draw() -> list[float]:
    return [random.random(), float(np.random.rand()), float(np.random.randn()), float(torch.rand(()))]


def test_all_generators_draw_the_same_again() -> None:
    """After an odd number of normal numbers, NumPy has one left over."""
    rng = RngState()
    for _ in range(2):
        saved, drawn = rng.state_dict(), draw()
        draw()
        rng.load_state_dict(saved)
        assert draw() == drawn


def test_a_moment_after_an_earlier_one_is_this_moment() -> None:
    """Also if NumPy has given only a number that was left over, which changes none of its words."""
    np.random.seed(1)
    for used in (lambda: None, np.random.rand, np.random.randn, np.random.randn, lambda: np.random.seed(3)):
        last = RngMoment.now()
        used()
        moment = RngMoment.now(last)
        expected = draw()
        moment.restore()
        assert draw() == expected


def test_pythons_state_is_plain_values_and_arrays() -> None:
    values = RngMoment.now().values()
    assert decode(encode({**values["python"], "words": None})) == {**values["python"], "words": None}
    assert values["python"]["words"].dtype == np.uint32
