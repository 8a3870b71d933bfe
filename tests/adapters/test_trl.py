"""TRL's SFTTrainer ends with what an undisturbed run ends with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from disturbed import KILLED, LOST, broken, ends, samples, undisturbed

SCRIPT, PRELOAD = "trl_script.py", ["trl.SFTTrainer", "transformers.LlamaForCausalLM"]

pytestmark = [pytest.mark.long(seconds=40), pytest.mark.faults]  # the Trainer's own test is in `make test`


def test_a_killed_worker_and_a_lost_node_change_nothing(tmp_path: Path, frameworks: Callable[..., None]) -> None:
    """Weights, optimizer, samples, and TRL's own numbers in the log: tokens, entropy, accuracy."""
    frameworks("trl", "datasets", "pyarrow", "pandas", "dill", "multiprocess")
    bare = undisturbed(SCRIPT, tmp_path / "bare", preload=PRELOAD)
    out = broken(SCRIPT, tmp_path, KILLED, LOST, env={}, preload=PRELOAD)
    assert samples(out) == samples(bare)
    assert ends(out) == ends(bare)
