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
from launcher.clusters.local.cluster import kill_node
from launcher.history.recovery import recoveries
from launcher.job.registry import find_job
from launcher.submission.job_control import stop_job

pytestmark = pytest.mark.long(seconds=50)

SIZES = [2, 4, 3]
PACED = Path(__file__).with_name("paced.py")


class FixedRun:
    """The samples and losses of a job on one node, as far as a test has asked."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._samples: dict[int, list[int]] = {}
        self._losses: dict[int, float] = {}

    def history(self, steps: int) -> tuple[dict[int, list[int]], dict[int, float]]:
        if steps > len(self._samples):
            job_dir = fixed_run(self._folder / str(steps), steps).job_dir
            self._samples, self._losses, _ = surviving_history(job_dir)
        asked = range(1, steps + 1)
        return {step: self._samples[step] for step in asked}, {step: self._losses[step] for step in asked}


@pytest.fixture(scope="module")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> FixedRun:
    return FixedRun(tmp_path_factory.mktemp("fixed"))


def assert_follows_a_fixed_job(job_dir: Path, fixed: FixedRun) -> None:
    """Same samples at each step, each counted once an epoch; same losses within floating-point reordering."""
    samples, losses, _ = surviving_history(job_dir)
    steps = len(samples)
    assert sorted(samples) == list(range(1, steps + 1))
    expected, expected_losses = fixed.history(steps)
    assert samples == expected
    counts = Counter(Counter(sample for step in samples.values() for sample in step).values())
    whole, rest = divmod(steps * GLOBAL_BATCH, SAMPLES)
    assert counts == Counter({whole: SAMPLES - rest, whole + 1: rest}) - Counter()
    assert losses == pytest.approx(expected_losses, rel=1e-6)  # 64-bit floats; other samples differ by some percent
    assert losses[steps] < 0.9 * losses[1]


@pytest.mark.timeout(400)  # two whole runs
def test_a_job_that_grows_and_shrinks_as_asked_sees_each_sample_once(tmp_path: Path, fixed: FixedRun) -> None:
    watch = resized_run(tmp_path, SIZES, script=str(PACED))
    ranks = surviving_history(watch.job_dir)[2]
    sizes = [size for size, _ in itertools.groupby(ranks[step] for step in sorted(ranks))]
    turns = [b for a, b, c in zip(sizes, sizes[1:], sizes[2:], strict=False) if (b - a) * (c - b) < 0]
    assert [sizes[0], *turns, sizes[-1]] == SIZES  # others are passed where two boosters join one after the other
    assert not watch.events("fault"), watch.story()
    assert_follows_a_fixed_job(watch.job_dir, fixed)


def test_without_a_spare_a_job_goes_on_with_the_survivors_and_sees_each_sample_once(
    tmp_path: Path, fixed: FixedRun
) -> None:
    """The node that was the first: the others move up, and what it held comes from its partner's copy."""
    steps = 60  # 2.9 epochs
    spec = elastic_job(steps, nodes=3, elastic={"min_nodes": 2})
    job = Executor(folder=tmp_path / "%j", cluster="local").submit(spec)
    watch = Watch(job.paths.folder)
    watch.wait_for("commit", 90, tier="memory", step=lambda step: step >= 20)
    kill_node(watch.job_dir, "node0")
    assert job.result()["name"] == "done", watch.story()
    ranks = surviving_history(job.paths.folder)[2]
    assert ranks[1] == 3 and ranks[steps] == 2
    (recovery,) = recoveries(watch.events(), {})
    assert (recovery.node, recovery.rung, recovery.restored_from) == ("node0", "shrink", "memory"), watch.story()
    assert recovery.step_resumed is not None and 20 <= recovery.step_resumed <= recovery.step_lost
    assert watch.wait_for("attempt_start", 1, attempt=1)["nodes"] == ["node1", "node2"]
    assert_follows_a_fixed_job(job.paths.folder, fixed)


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
