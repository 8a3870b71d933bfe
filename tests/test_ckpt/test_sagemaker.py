"""A HyperPod script runs after changing its import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from trainer_kit import solo_namespace

from ckpt.errors import ConfigError
from ckpt.sagemaker import SageMakerCheckpointConfig
from ckpt.tiers.posix import SharedTier

# As in HyperPod's own documentation, but for the import, the path, and an earlier wait.
SCRIPT = """
import sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import async_save, load
from ckpt.sagemaker import SageMakerCheckpointConfig, SageMakerTieredStorageReader, SageMakerTieredStorageWriter

namespace, base, store, first, last = *sys.argv[1:4], int(sys.argv[4]), int(sys.argv[5])
dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
checkpoint_config = SageMakerCheckpointConfig(
    namespace=namespace, world_size=dist.get_world_size(), s3_tier_base_path=base
)
state_dict = {"model": {"w": torch.zeros(5)}, "step": 0}
if first > 1:
    load(state_dict, storage_reader=SageMakerTieredStorageReader(checkpoint_config=checkpoint_config))
    assert state_dict["step"] == first - 1 and state_dict["model"]["w"].eq(first - 1).all(), state_dict
future = None
for training_step in range(first, last + 1):
    if future is not None:
        future.result()  # before the tensor changes: torch 2.6 copies none that is on the CPU
    state_dict["model"]["w"] += 1
    state_dict["step"] = training_step
    checkpoint_config.save_to_s3 = training_step % 3 == 0
    writer = SageMakerTieredStorageWriter(checkpoint_config=checkpoint_config, step=training_step)
    future = async_save(state_dict=state_dict, storage_writer=writer)
future.result()
dist.destroy_process_group()
"""

LOAD_STEP_3 = """
load(state_dict, storage_reader=SageMakerTieredStorageReader(checkpoint_config=checkpoint_config, step=3))
assert state_dict["step"] == 3 and state_dict["model"]["w"].eq(3).all(), state_dict
dist.destroy_process_group()
"""


def test_a_hyperpod_script_saves_loads_and_chooses_what_goes_to_the_lower_tier(tmp_path: Path) -> None:
    older = SCRIPT.partition("if first > 1")[0] + LOAD_STEP_3
    with solo_namespace() as namespace:
        for number, (script, first, last) in enumerate(((SCRIPT, 1, 4), (SCRIPT, 5, 6), (older, 0, 0))):
            (tmp_path / "script.py").write_text(script)
            arguments = [namespace, tmp_path / "lower", tmp_path / f"store{number}", first, last]
            done = subprocess.run(
                [sys.executable, tmp_path / "script.py", *map(str, arguments)],
                check=False, capture_output=True, text=True, timeout=120,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
        assert [save.step for save in SharedTier(tmp_path / "lower", namespace).steps()] == [6, 4, 3], (
            "4: the last one of its run"
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"s3_tier_base_path": "gs://bucket"}, "expected a directory"),
        ({"world_size": 0}, "world_size"),
        ({"save_to_s3": True}, "needs s3_tier_base_path"),
    ],
)
def test_what_cannot_be_is_refused_at_once(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SageMakerCheckpointConfig(**{"namespace": "ns", "world_size": 1, **arguments})
