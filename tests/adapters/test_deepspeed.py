"""DeepSpeed with ZeRO ends with what an undisturbed run ends with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from disturbed import KILLED, LOST, broken, ends, samples, undisturbed

SCRIPT, PRELOAD = "deepspeed_script.py", ["deepspeed"]

pytestmark = pytest.mark.long(seconds=30)


ZERO_1 = pytest.param({"STAGE": "1"}, id="ZeRO-1", marks=pytest.mark.faults)
ZERO_2 = pytest.param({"STAGE": "2", "FP16": "1"}, id="ZeRO-2, fp16")


@pytest.mark.parametrize("env", [ZERO_1, ZERO_2])
def test_a_killed_worker_and_a_lost_node_change_nothing(
    tmp_path: Path, frameworks: Callable[..., None], env: dict[str, str]
) -> None:
    frameworks("deepspeed")
    bare = undisturbed(SCRIPT, tmp_path / "bare", preload=PRELOAD, **env)
    out = broken(SCRIPT, tmp_path, KILLED, LOST, env=env, preload=PRELOAD)
    assert samples(out) == samples(bare)
    assert ends(out) == ends(bare)
