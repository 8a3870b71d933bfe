"""DeepSpeed with ZeRO ends with what an undisturbed run ends with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from disturbed import KILLED, LOST, broken, ends, samples, undisturbed

SCRIPT = "deepspeed_script.py"


@pytest.mark.parametrize("env", [{"STAGE": "1"}, {"STAGE": "2", "FP16": "1"}], ids=["ZeRO-1", "ZeRO-2, fp16"])
def test_a_killed_worker_and_a_lost_node_change_nothing(
    tmp_path: Path, frameworks: Callable[..., None], env: dict[str, str]
) -> None:
    frameworks("deepspeed")
    bare = undisturbed(SCRIPT, tmp_path / "bare", **env)
    out = broken(SCRIPT, tmp_path, KILLED, LOST, env=env, preload=["deepspeed"])
    assert samples(out) == samples(bare)
    assert ends(out) == ends(bare)
