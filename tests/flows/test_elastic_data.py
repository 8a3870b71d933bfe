"""An elastic job sees the samples of a fixed one, step for step, and its loss follows."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from pathlib import Path

import pytest
from elastic_run import GLOBAL_BATCH, SAMPLES, elastic_job, fixed_run, resized_run, surviving_history
from main_job import Watch

from launcher import Executor, JobSpec
from launcher.registry import find_job
from launcher.scheduler.local import kill_node
from launcher.submission.job_control import stop_job

SIZES = [2, 4, 2, 3]


def assert_follows_a_fixed_job(job_dir: Path, folder: Path) -> None:
    """Same samples at each step, each counted once an epoch; same losses within floating-point reordering."""
    samples, losses, _ = surviving_history(job_dir)
    steps = len(samples)
    assert sorted(samples) == list(range(1, steps + 1))
    expected, expected_losses, _ = surviving_history(fixed_run(folder, steps).job_dir)
    assert samples == expected
    counts = Counter(Counter(sample for step in samples.values() for sample in step).values())
    whole, rest = divmod(steps * GLOBAL_BATCH, SAMPLES)
    assert counts == Counter({whole: SAMPLES - rest, whole + 1: rest}) - Counter()
    assert losses == pytest.approx(expected_losses, rel=1e-6)  # 64-bit floats; other samples differ by some percent
    assert losses[steps] < 0.9 * losses[1]


@pytest.mark.timeout(400)  # two whole runs
def test_a_job_that_grows_and_shrinks_as_asked_sees_each_sample_once(tmp_path: Path) -> None:
    watch = resized_run(tmp_path, SIZES)
    ranks = surviving_history(watch.job_dir)[2]
    sizes = [size for size, _ in itertools.groupby(ranks[step] for step in sorted(ranks))]
    turns = [b for a, b, c in zip(sizes, sizes[1:], sizes[2:], strict=False) if (b - a) * (c - b) < 0]
    assert [sizes[0], *turns, sizes[-1]] == SIZES  # others are passed where two boosters join one after the other
    assert not watch.events("fault"), watch.story()
    assert_follows_a_fixed_job(watch.job_dir, tmp_path / "fixed")


def test_a_job_that_shrinks_by_a_loss_sees_each_sample_once(tmp_path: Path) -> None:
    steps = 60  # 2.9 epochs
    spec = elastic_job(steps, nodes=3, elastic={"min_nodes": 2})
    job = Executor(folder=tmp_path / "%j", cluster="local").submit(spec)
    watch = Watch(job.paths.folder)
    watch.wait_for("commit", 90, tier="memory", step=lambda step: step >= 20)
    kill_node(watch.job_dir, "node0")
    assert job.result()["name"] == "done", watch.story()
    ranks = surviving_history(job.paths.folder)[2]
    assert ranks[1] == 3 and ranks[steps] == 2
    assert_follows_a_fixed_job(job.paths.folder, tmp_path / "fixed")


HYPERPOD_SCRIPT = """
import os
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from ckpt.sagemaker import SageMakerCheckpointConfig, SageMakerTieredStorageReader, SageMakerTieredStorageWriter
from ckpt.sagemaker import elastic_event_detected

dist.init_process_group("gloo")
config = SageMakerCheckpointConfig(namespace="script", world_size=dist.get_world_size())
state, step = {"w": torch.zeros(5)}, 0
while True:
    step += 1
    state["w"] += 1
    stops = elastic_event_detected()
    if stops or step % 100 == 0:
        dcp.save(state, storage_writer=SageMakerTieredStorageWriter(config, step))
    if stops:
        break
print("left at step", step, flush=True)
dist.destroy_process_group()
"""


def test_all_ranks_of_a_hyperpod_script_leave_at_one_step(tmp_path: Path) -> None:
    """No collective holds its ranks together between two saves, and no Checkpointer is in sight."""
    (tmp_path / "script.py").write_text(HYPERPOD_SCRIPT)
    mapping = {"name": "x", "script": str(tmp_path / "script.py"), "nodes": 2, "checkpoint": {"namespace": "x"}}
    spec = JobSpec.from_mapping(mapping, tmp_path)
    job = Executor(folder=tmp_path / "%j", cluster="local").submit(spec)
    watch = Watch(job.paths.folder)
    watch.wait_for("commit", 90, tier="memory")
    stop_job(find_job(job.job_id))
    assert job.result()["name"] == "halted", watch.story()
    logs = (watch.job_dir / "log" / "attempt-0").glob("rank-*.log")
    left = [int(re.search(r"left at step (\d+)", log.read_text())[1]) for log in logs]  # type: ignore[index]
    assert len(left) == 2 and left[0] == left[1]
    assert watch.wait_for("commit", 1, tier="memory", step=left[0])
