"""What the launcher puts into a worker's environment."""

from __future__ import annotations

from pathlib import Path

from ckpt.data import batch_plan
from launcher.jobfile import JobSpec
from launcher.runner.variables import attempt_environment


def test_the_recipe_of_an_attempts_size_reaches_the_batch_plan(tmp_path: Path) -> None:
    elastic = {"sizes": [2, 4], "scale": {2: {"global_batch": 8, "lr": 3e-4}}}
    spec = JobSpec.from_mapping({"name": "x", "script": __file__, "nodes": 2, "elastic": elastic}, Path("/"))
    for nodes, batch, recipe in (
        (["n1", "n2"], 8, {"global_batch": 8, "lr": 3e-4}),
        (["n1", "n2", "n3", "n4"], 32, {}),
    ):
        plan = batch_plan(32, len(nodes), env=attempt_environment(spec, "run", tmp_path, 0, list(nodes), {}))
        assert plan.global_batch == batch and dict(plan.recipe) == recipe
