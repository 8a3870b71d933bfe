"""Each framework's example runs as its job file says, and goes on after a node was lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from main_job import Watch

from launcher import Executor
from launcher.clusters.local.cluster import kill_node
from launcher.job.jobfile import load_job

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
EXAMPLE = {  # the packages that it needs, and arguments for a run that is long enough to lose a node
    "transformers_trainer": (["transformers"], ["--samples", "800"]),
    "lightning_trainer": (["lightning"], ["--samples", "400"]),
    "torchtitan_loop": (["torchtitan", "torch_checkpointing", "tyro"], ["--steps", "1500"]),
    "megatron_core": (["megatron"], ["--steps", "3000"]),
}

LATER = {"torchtitan_loop", "megatron_core"}  # their frameworks have a test of their own in `make test`

pytestmark = pytest.mark.long(seconds=60)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.faults] if name in LATER else []) for name in EXAMPLE]
)
def test_an_example_goes_on_without_a_node(
    tmp_path: Path, frameworks: Callable[..., None], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages, args = EXAMPLE[name]
    frameworks(*packages)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    spec = load_job(EXAMPLES / name / "job.yaml", {"args": args})
    submitted = Executor(folder=tmp_path / "%j", cluster="local").submit(spec)
    watch = Watch(submitted.paths.folder)
    try:
        committed = watch.wait_for("commit", 120)
        kill_node(watch.job_dir, watch.events("attempt_start")[-1]["nodes"][1])
        assert submitted.result()["name"] == "done", watch.story()
    except BaseException:
        submitted.cancel(check=False)
        raise
    restored = watch.wait_for("restore", 1, attempt=1)
    assert restored["step"] >= committed["step"] > 0, watch.story()
