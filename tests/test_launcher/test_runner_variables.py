"""What the launcher puts into a worker's environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt.data import batch_plan
from launcher.job.jobfile import JobSpec
from launcher.runner.cache import cache_dir
from launcher.runner.config import RunnerConfig
from launcher.runner.trackers import tracker_variables
from launcher.runner.variables import attempt_environment, worker_environment


def test_the_recipe_of_an_attempts_size_reaches_the_batch_plan(tmp_path: Path) -> None:
    elastic = {"sizes": [2, 4], "scale": {2: {"global_batch": 8, "lr": 3e-4}}}
    spec = JobSpec.from_mapping({"name": "x", "script": __file__, "nodes": 2, "elastic": elastic}, Path("/"))
    for nodes, batch, recipe in (
        (["n1", "n2"], 8, {"global_batch": 8, "lr": 3e-4}),
        (["n1", "n2", "n3", "n4"], 32, {}),
    ):
        plan = batch_plan(32, len(nodes), env=attempt_environment(spec, "run", tmp_path, 0, list(nodes), {}))
        assert plan.global_batch == batch and dict(plan.recipe) == recipe


def test_a_worker_knows_its_run_its_attempt_and_how_often_the_job_was_requeued(tmp_path: Path) -> None:
    spec = JobSpec.from_mapping({"name": "x", "script": __file__}, Path("/"))
    config = RunnerConfig(
        run_id="slurm-c-7", node="n1", ram_dir=tmp_path, job_dir=tmp_path, host="h", port=1, parent_pid=None,
        restart_count=2,
    )  # fmt: skip
    environment = worker_environment(spec, config, 5, ["n1"])
    names = ("HOLDFAST_RUN_ID", "HOLDFAST_ATTEMPT", "HOLDFAST_RESTART_COUNT")
    assert [environment[name] for name in names] == ["slurm-c-7", "5", "2"]


def test_each_node_has_a_cache_of_its_own_that_outlives_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cache_dir("n1", {"HOLDFAST_CACHE_DIR": "/local/c"}) == Path("/local/c/n1")
    assert cache_dir("n1", {"HOLDFAST_DISK_DIR": "/local/holdfast-7"}) == Path("/local/holdfast-7/cache/n1")
    config = RunnerConfig(
        run_id="slurm-c-7", node="n1", ram_dir=tmp_path, job_dir=tmp_path, host="h", port=1, parent_pid=None,
        restart_count=0,
    )  # fmt: skip
    spec = JobSpec.from_mapping({"name": "x", "script": __file__}, Path("/"))
    monkeypatch.setenv("HOLDFAST_CACHE_DIR", "/mine")
    assert worker_environment(spec, config, 0, ["n1"])["HOLDFAST_CACHE_DIR"] == "/mine/n1"


WORKER = {"RANK": "0", "HOLDFAST_RUN_ID": "slurm-alps-7"}


def test_one_run_of_a_tracker_lasts_over_all_attempts() -> None:
    assert tracker_variables(WORKER) == {"WANDB_RUN_ID": "slurm-alps-7", "WANDB_RESUME": "allow"}
    assert tracker_variables(WORKER | {"HOLDFAST_RUN_ID": "a/b:c" * 99})["WANDB_RUN_ID"] == ("a-b-c" * 99)[:128]


def test_what_the_user_has_set_for_a_tracker_stays() -> None:
    assert tracker_variables(WORKER | {"WANDB_RUN_ID": "mine"}) == {"WANDB_RESUME": "allow"}
    assert tracker_variables(WORKER | {"WANDB_RUN_ID": "mine", "WANDB_RESUME": "never"}) == {}
    assert tracker_variables(WORKER | {"WANDB_SWEEP_ID": "s"}) == {}


def test_ranks_that_have_a_run_of_their_own_share_no_id() -> None:
    assert tracker_variables(WORKER | {"RANK": "1"}) == {}
