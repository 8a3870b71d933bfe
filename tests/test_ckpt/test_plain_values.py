"""Plain values of a state: which keys must be saved, and what comes in with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from trainer_kit import solo_namespace

from ckpt import Checkpointer
from ckpt.errors import StateError
from ckpt.worker.load.match import _check_plain


@pytest.mark.parametrize(
    ("live", "saved"),
    [
        ({"epoch": 0, "best": 1e9}, {"epoch": 3, "best": 0.5}),
        ({"epoch": 0}, {"epoch": 3, "history": [1, 2]}),  # it has grown since the start of training
        ({}, {"file-1": 3}),
        ({1: 0.5}, {2: 0.5}),
        (None, {"a": 1}),
        (0, 0.5),
        (0.5, None),
        ([], [1, 2]),
    ],
)
def test_what_a_restart_of_the_same_script_has_loads(live: Any, saved: Any) -> None:
    _check_plain(live, saved, ("cfg",))


@pytest.mark.parametrize(
    ("live", "saved", "message"),
    [
        ({"epoch": 0, "best_loss": 1e9}, {"epoch": 1, "best": 1.0}, "not in the saved state: 'best_loss'"),
        ({"a": {"b": 1}}, {"a": {}}, "not in the saved state: 'b'"),
        ({"a": 1}, 0.1, "saved as a float, live is a dict"),
        (0.1, {"a": 1}, "saved as a dict, live is a float"),
    ],
)
def test_a_key_that_was_added_or_renamed_is_no_silent_loss(live: Any, saved: Any, message: str) -> None:
    with pytest.raises(StateError, match=message):
        _check_plain(live, saved, ("cfg",))


def test_the_error_says_whose_state_it_is(tmp_path: Path) -> None:
    with solo_namespace() as namespace:
        with Checkpointer(namespace=namespace, shared=tmp_path) as ckpt:
            ckpt.save(1, {"weight": torch.zeros(3), "cfg": {"epoch": 0, "best": 1e9}})
        live = {"weight": torch.ones(3), "cfg": {"epoch": 0, "best_loss": 1e9, "patience": 3}}
        what = r"'best_loss' \(nearest: 'best'\), 'patience'.*step 1 was saved by .*user"
        with Checkpointer(namespace=namespace, shared=tmp_path) as ckpt, pytest.raises(StateError, match=what):
            ckpt.load(live)
        assert live["cfg"] == {"epoch": 0, "best_loss": 1e9, "patience": 3} and bool(live["weight"].eq(1).all())
