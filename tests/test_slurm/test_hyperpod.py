"""HyperPod's orders in a node's reason."""

from __future__ import annotations

import pytest

from slurm.hyperpod import REBOOT, REPLACE, order_in


@pytest.mark.parametrize(
    ("reason", "order"),
    [
        ("Action:Replace", REPLACE),
        ("Action:Reboot", REBOOT),
        ("Action:Replace [root@2026-11-28T15:54:20]", REPLACE),
        ("action:replace", None),
        ("Action: Reboot", None),
        ("Action:Reboot.", None),
        ("Action:Reboot by the health agent", None),
        ("Action:Replacement of the fan", None),
        ("holdfast: Action:Replace", None),
        ("a broken fan", None),
        ("", None),
    ],
)
def test_hyperpod_acts_on_its_exact_words_alone(reason: str, order: str | None) -> None:
    assert order_in(reason) == order
