"""Lightning's Trainer ends with what an undisturbed run ends with, whatever happens on its way."""

from __future__ import annotations

from pathlib import Path

import pytest
from disturbed import KILLED, LOST, broken, ends, samples, undisturbed

pytest.importorskip("lightning")

SCRIPT = "lightning_script.py"
PRELOAD = ["lightning.pytorch", "torchmetrics"]

pytestmark = pytest.mark.long(seconds=40)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return undisturbed(SCRIPT, tmp_path_factory.mktemp("bare") / "out")


def test_a_killed_worker_and_a_lost_node_change_nothing(tmp_path: Path, bare: Path) -> None:
    """Weights, optimizer, samples, loops, callbacks, the best model, and all that was logged."""
    out = broken(SCRIPT, tmp_path, KILLED, LOST, env={}, preload=PRELOAD)
    assert samples(out) == samples(bare)
    assert ends(out) == ends(bare)
