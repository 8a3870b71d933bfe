"""The main job on the local cluster: real processes, killed for real."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from main_job import Watch, main_job
from s3_kit import KEY, SECRET, s3_server

from launcher import Executor
from launcher.cli import main
from launcher.clusters.local.cluster import kill_node
from launcher.history.recovery import recoveries
from launcher.job.jobfile import JobSpec
from launcher.job.registry import find_job
from launcher.submission.job_control import cancel_job

pytestmark = pytest.mark.long(seconds=50)


def test_a_killed_node_is_replaced_and_the_weights_are_those_of_a_run_without(
    tmp_path: Path, reference_sha256: str
) -> None:
    job = Executor(folder=tmp_path / "%j", cluster="local").submit(main_job())
    watch = Watch(job.paths.folder)
    watch.wait_for("commit", 90, tier="memory", step=lambda step: step >= 20)
    killed_at = time.time()
    kill_node(watch.job_dir, "node1")

    outcome = job.result()

    assert outcome["name"] == "done", watch.story()
    assert watch.sha256 == reference_sha256
    (recovery,) = recoveries(watch.events(), {"node1": killed_at})
    assert (recovery.node, recovery.rung, recovery.restored_from) == ("node1", "spare", "memory"), watch.story()
    assert recovery.step_resumed is not None and 20 <= recovery.step_resumed <= recovery.step_lost
    assert recovery.detect_s is not None and recovery.detect_s < 3
    assert "node3" in watch.wait_for("attempt_start", 1, attempt=1)["nodes"]


def test_a_job_that_was_cancelled_is_followed_by_the_next_at_once(tmp_path: Path) -> None:
    checkpoint = {"namespace": "flow", "shared": {"path": str(tmp_path / "shared"), "every_steps": 20, "keep": 2}}
    executor = Executor(folder=tmp_path / "%j", cluster="local")
    first = executor.submit(main_job(nodes=1, spares=0, checkpoint=checkpoint))
    watch = Watch(first.paths.folder)
    watch.wait_for("commit", 90, tier="shared")
    cancel_job(find_job(str(first.paths.folder)))
    second = executor.submit(main_job(nodes=1, spares=0, checkpoint=checkpoint))
    watch = Watch(second.paths.folder)
    assert watch.wait_for("restore", 90)["tier"] == "shared", watch.story()
    log = second.paths.folder / "log/attempt-0/agents.log"  # by way of mpirun, which may be late with it
    watch.until(lambda: "has ended: taken over" in log.read_text(), 30, "the agents' word that the first has ended")
    cancel_job(find_job(str(second.paths.folder)))


GPU_SCRIPT = """
import os, pathlib, time
folder = pathlib.Path(os.environ["HOLDFAST_JOB_DIR"])
attempt, rank = os.environ["HOLDFAST_ATTEMPT"], os.environ["RANK"]
(folder / f"sees-{attempt}-{rank}").write_text(os.environ["CUDA_VISIBLE_DEVICES"])
while attempt == "0":  # until a node is lost
    time.sleep(0.01)
"""


def test_a_node_that_replaces_a_lost_one_gets_its_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3,5,7")
    (tmp_path / "script.py").write_text(GPU_SCRIPT)
    job = {"name": "gpus", "script": "script.py", "nodes": 2, "spares": 1, "gpus_per_node": 2, "workers_per_node": 1}
    submitted = Executor(folder=tmp_path / "%j", cluster="local").submit(JobSpec.from_mapping(job, tmp_path))
    watch = Watch(submitted.paths.folder)

    def seen(attempt: int) -> list[str] | None:
        files = [watch.job_dir / f"sees-{attempt}-{rank}" for rank in range(2)]
        return [file.read_text() for file in files] if all(file.exists() for file in files) else None

    watch.until(lambda: seen(0), 90, "both workers")
    kill_node(watch.job_dir, watch.wait_for("attempt_start", 1, attempt=0)["nodes"][0])
    assert submitted.result()["name"] == "done", watch.story()
    assert seen(0) == seen(1) == ["2,3", "5,7"]


def test_a_run_that_cannot_be_noted_is_followed_all_the_same_and_says_that_it_uses_no_gpu(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    (tmp_path / "script.py").write_text("print('done')\n")
    (tmp_path / "job.yaml").write_text("name: unnoted\nscript: script.py\ngpus_per_node: 0\n")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert main(["run", str(tmp_path / "job.yaml"), "--folder", str(tmp_path / "runs" / "%j")]) == 0
    assert "done" in capsys.readouterr().out.splitlines()[-1]
    assert "1 GPU here, none for the job: it trains on the CPU" in caplog.text


def test_agents_use_the_credentials_that_the_job_file_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server(tmp_path / "store") as server:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        checkpoint = {"namespace": "flow", "s3": {**server.section(), "every_steps": 10}}
        env = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
        job = main_job(nodes=1, spares=0, checkpoint=checkpoint, env=env)
        watch = Watch((submitted := Executor(folder=tmp_path / "%j", cluster="local").submit(job)).paths.folder)
        watch.wait_for("commit", 90, tier="s3")
        cancel_job(find_job(str(submitted.paths.folder)))
