"""A requeue on a real Slurm changes nothing in a framework's training."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from disturbed import HERE, ends, samples, undisturbed
from slurm_kit import submit, write_job

pytestmark = [pytest.mark.slurm, pytest.mark.faults, pytest.mark.timeout(400)]

SCRIPTS = {  # with the packages that each needs, and what it imports
    "accelerate_script.py": (["accelerate"], ["accelerate"]),
    "deepspeed_script.py": (["deepspeed"], ["deepspeed"]),
    "trainer_script.py": (["transformers"], ["transformers.Trainer", "transformers.EarlyStoppingCallback"]),
    "lightning_script.py": (["lightning"], ["lightning.pytorch", "torchmetrics"]),
    "torchtitan_script.py": (
        ["torchtitan", "torch_checkpointing", "tyro"], ["torchtitan.components.checkpointer"]
    ),
    "megatron_script.py": (
        ["megatron", "nvidia_resiliency_ext"],
        ["megatron.core.dist_checkpointing.strategies.torch", "megatron.core.tensor_parallel.mappings"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_requeued_job_ends_as_an_undisturbed_one(
    slurm_cluster: Any, tmp_path: Path, frameworks: Callable[..., None], script: str
) -> None:
    packages, preload = SCRIPTS[script]
    frameworks(*packages)
    framework = script.partition("_")[0]
    bare = undisturbed(script, tmp_path / "bare", preload=preload, MODE="dist")
    folder = slurm_cluster.home / f"requeued-{framework}"
    job = {
        "name": "adapter",
        "script": str(HERE / script),
        "nodes": 2,
        "preload": preload,
        "env": {
            "OUT": str(folder),
            "FAULTS": "0:1:11:9:wait",
            "OMP_NUM_THREADS": "1",
            "MODE": "dist",
            "PYTHONPATH": os.environ["PYTHONPATH"],
        },
        "checkpoint": {
            "namespace": f"requeued-{framework}",
            "memory": {"every_steps": 3, "keep": 2},
            "shared": {"path": "checkpoints", "every_steps": 3, "keep": 2},
        },
    }
    job_id, watch = submit(slurm_cluster, write_job(slurm_cluster, folder, job))
    watch.until(lambda: True if (folder / "waits").exists() or watch.events("job_end") else None, 120, "the fault")
    watch.wait_for("commit", 60, tier="shared")  # a step that comes during a flush is not flushed
    slurm_cluster.run_as_user(["scontrol", "requeue", job_id], timeout_s=20)
    watch.wait_for("job_end", 300, outcome="done")
    assert any((event["step"] or 0) >= 3 for event in watch.events("restore")), watch.story()
    assert samples(folder) == samples(bare)
    assert ends(folder) == ends(bare)
