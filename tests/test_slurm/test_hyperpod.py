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
        ("Action: replace", REPLACE),
        (" Action:Reboot by the health agent", REBOOT),
        ("Action:Replacement of the fan", None),
        ("holdfast: Action:Replace", None),
        ("a broken fan", None),
        ("", None),
    ],
)
def test_an_order_stands_at_the_beginning_of_the_reason(reason: str, order: str | None) -> None:
    assert order_in(reason) == order
