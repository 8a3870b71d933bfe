"""torchtitan's checkpoint manager over Holdfast ends with what an undisturbed run ends with."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from disturbed import KILLED, LOST, broken, ends, samples, undisturbed

SCRIPT, PRELOAD = "torchtitan_script.py", ["torchtitan.components.checkpointer"]

pytestmark = pytest.mark.long(seconds=20)


def test_a_killed_worker_and_a_lost_node_change_nothing(tmp_path: Path, frameworks: Callable[..., None]) -> None:
    frameworks("torchtitan", "torch_checkpointing", "tyro")
    bare = undisturbed(SCRIPT, tmp_path / "bare", preload=PRELOAD)
    out = broken(SCRIPT, tmp_path, KILLED, LOST, env={}, preload=PRELOAD)
    assert samples(out) == samples(bare)
    assert ends(out) == ends(bare)


REFUSED = """
from ckpt import CheckpointError
from holdfast.adapters.torchtitan import CheckpointManager
for option in ({"exclude_from_loading": ["lr_scheduler"]}, {"create_seed_checkpoint": True}):
    try:
        CheckpointManager.Config(enable=True, **option)
    except CheckpointError as error:
        print(error)
"""


@pytest.mark.faults
def test_options_that_would_lose_state_are_refused(frameworks: Callable[..., None]) -> None:
    frameworks("torchtitan", "torch_checkpointing", "tyro")
    done = subprocess.run([sys.executable, "-c", REFUSED], capture_output=True, text=True, timeout=100, check=False)
    said = done.stdout.splitlines()
    assert [line.split(":")[0].split("=")[0] for line in said] == [
        "checkpoint.exclude_from_loading", "checkpoint.create_seed_checkpoint"
    ], done.stderr  # fmt: skip
