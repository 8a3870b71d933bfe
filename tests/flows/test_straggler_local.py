"""A rank that becomes slow in a real job: it is named, and a spare takes its node's place."""

from __future__ import annotations

from pathlib import Path

import pytest
from main_job import Watch

from launcher import Executor
from launcher.job.jobfile import JobSpec
from launcher.job.registry import find_job
from launcher.submission.job_control import cancel_job

pytestmark = pytest.mark.long(seconds=40)

SCRIPT = """
import os, time
import torch, torch.distributed as dist
from holdfast import Checkpointer
dist.init_process_group("gloo")
slow_node = os.environ["HOLDFAST_NODES"].split(",")[1]
is_slow = os.environ["HOLDFAST_NODE"] == slow_node and os.environ["HOLDFAST_ATTEMPT"] == "0"
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
state = {"model": model}
with Checkpointer.from_env() as ckpt:
    step = ckpt.load(state) or 0
    while not ckpt.should_stop(step):
        with ckpt.section("data"):
            time.sleep(0.06 if is_slow else 0.02)
        model(torch.ones(8)).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        step += 1
        if ckpt.should_save(step):
            ckpt.save(step, state)
"""


def test_the_slow_node_is_named_and_left_at_a_step_that_is_saved(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    job = {
        "name": "slow", "script": "train.py", "nodes": 2, "spares": 1, "gpus_per_node": 0,
        "straggler": {"action": "swap", "factor": 1.5, "steps": 20},
        "checkpoint": {"memory": {"every_steps": 10}},
    }  # fmt: skip
    submitted = Executor(folder=tmp_path / "%j", cluster="local").submit(JobSpec.from_mapping(job, tmp_path))
    watch = Watch(submitted.paths.folder)
    try:
        first = watch.wait_for("attempt_start", 90, attempt=0)
        slow = watch.wait_for("straggler", 90)
        assert (slow["node"], slow["rank"], slow["part"]) == (first["nodes"][1], 1, "data"), watch.story()
        assert slow["factor"] > 1.5
        leaving = watch.wait_for("node_leaving", 30)
        assert (leaving["node"], leaving["cause"]) == (slow["node"], "slow")
        second = watch.wait_for("attempt_start", 60, attempt=1)
        assert set(second["nodes"]) == {first["nodes"][0], *first["spares"]}, watch.story()
        restored = watch.wait_for("restore", 60, attempt=1)
        ended = watch.wait_for("attempt_end", 1, attempt=0)
        assert restored["step"] == ended["step"], "no step is lost"
        assert not [event for event in watch.events() if event["event"] == "fault"]
    finally:
        cancel_job(find_job(str(submitted.paths.folder)))
