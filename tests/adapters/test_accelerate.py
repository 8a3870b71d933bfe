"""An accelerate loop with Holdfast's loader ends with what an undisturbed run ends with."""

from __future__ import annotations

from pathlib import Path

import pytest
from disturbed import KILLED, LOST, broken, ends, samples, undisturbed

pytest.importorskip("accelerate")

SCRIPT, PRELOAD = "accelerate_script.py", ["accelerate"]

pytestmark = pytest.mark.long(seconds=20)


def test_a_killed_worker_and_a_lost_node_change_nothing(tmp_path: Path) -> None:
    bare = undisturbed(SCRIPT, tmp_path / "bare", preload=PRELOAD)
    out = broken(SCRIPT, tmp_path, KILLED, LOST, env={}, preload=PRELOAD)
    assert samples(out) == samples(bare)
    assert ends(out) == ends(bare)
