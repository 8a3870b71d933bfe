"""`holdfast ckpt plan` as a user calls it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.cli import checkpoint_plan, main
from launcher.history.fields import as_event
from launcher.history.measured import measured

CHECKPOINT = """
checkpoint:
  redundancy: {scheme: xor, group_size: 8}
  nvme: {path: /local/holdfast, every_steps: 50}
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "train.py").touch()
    return write(tmp_path / "job.yaml", CHECKPOINT)


def write(path: Path, checkpoint: str) -> Path:
    path.write_text(f"name: gpt\nscript: train.py\nnodes: 16\ngpus_per_node: 8\n{checkpoint}")
    return path


def test_the_account_is_for_the_jobs_own_size(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ckpt", "plan", str(job), "--state-bytes", "1.28TB", "--nvme-gb-s", "4", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["nodes"], plan["ranks_per_node"], plan["shard_bytes"]) == (16, 8, 10**10)
    assert plan["memory"]["own_bytes"] == plan["memory"]["slots"] * 8 * 10**10
    assert plan["losses"] == {"set_sizes": [8], "sets": 2, "any_nodes": 1, "most_nodes": 2, "any_switch": None}
    assert plan["flushes"][0]["seconds"] == pytest.approx(20, rel=0.01)


def test_people_read_what_it_survives(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ckpt", "plan", str(job), "--shard-bytes", "10GB", "--nodes-per-switch", "8"]) == 0
    text = capsys.readouterr().out
    assert "any 1 node at once, of up to 2 in different sets; of any one switch: no" in text
    assert "16 nodes x 8 ranks, 10.0 GB each" in text


def test_of_one_set_nothing_is_said_of_several(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ckpt", "plan", str(job), "--shard-bytes", "10GB", "--nodes", "4"]) == 0
    text = capsys.readouterr().out
    assert "any 1 node at once; of a switch" in text and "different sets" not in text


@pytest.mark.parametrize(("flags", "message"), [
    ([], "one of --state-bytes"),
    (["--state-bytes", "1GB", "--shard-bytes", "1GB"], "one of --state-bytes"),
    (["--shard-bytes", "lots"], "--shard-bytes: got 'lots', expected a size such as 70GB"),
    (["--shard-bytes", "1GB", "--nvme-gb-s", "0"], "--nvme-gb-s"),
])  # fmt: skip
def test_bad_sizes_are_one_line(job: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str) -> None:
    assert main(["ckpt", "plan", str(job), *flags]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_a_job_without_checkpoints_has_nothing_to_plan(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ckpt", "plan", str(write(job, "")), "--shard-bytes", "1GB"]) == 2
    assert "job.yaml: checkpoint: missing" in capsys.readouterr().err


LOWER = """
checkpoint:
  memory: {every_steps: 1}
  redundancy: {scheme: partner}
  shared: {path: /fsx/ckpt, every_steps: 10, keep_every_steps: 100}
  s3: {url: "s3://bucket/x", every_steps: auto}
"""


def outlook(capsys: pytest.CaptureFixture[str], path: Path, *flags: str) -> dict[str, Any]:
    (path.parent / "train.py").touch()
    assert main(["ckpt", "plan", str(path), "--json", *flags]) == 0
    return json.loads(capsys.readouterr().out)["outlook"]


def test_the_cadence_is_that_of_the_formulas_for_the_given_times_and_failures(
    tmp_path: Path, job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of = write(tmp_path / "lower.yaml", LOWER)
    flags = ["--shard-bytes", "1GB", "--step-s", "2", "--stall-s", "0.5", "--mtbf-h", "160", "--wire-gb-s", "50"]
    found = outlook(capsys, of, *flags)
    assert found["mean_s_between_failures"] == pytest.approx(36_000)
    memory, shared, s3 = found["tiers"]
    assert memory["best_every_s"] == pytest.approx(math.sqrt(2 * 0.5 * 36_000 / 0.9), rel=0.01)
    assert memory["best_every_steps"] == pytest.approx(100, abs=2) and memory["every_steps"] == 1
    assert s3["is_auto"] and s3["every_steps"] == s3["best_every_steps"] >= memory["best_every_steps"]
    assert shared["bytes_per_month"] == pytest.approx(128e9 * 30 * 86_400 / 20)
    assert found["ratio"] < found["best_ratio"] < 1
    assert found["s3"]["puts"] > 30 * 8640 and found["s3"]["usd"] > found["s3"]["stored_bytes"] / 1e9 * 0.02
    more = outlook(capsys, of, *flags, "--nodes", "2048")
    assert (
        more["tiers"][0]["best_every_steps"] < memory["best_every_steps"] and more["best_ratio"] < found["best_ratio"]
    )


def test_what_nobody_gave_is_assumed_and_said(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ckpt", "plan", str(job), "--shard-bytes", "10GB"]) == 0
    text = capsys.readouterr().out
    assert "Llama 3 (arXiv 2407.21783): 419 unexpected interruptions in 54 days on 16,384 GPUs" in text
    for assumed in ("a step takes 10 s (--step-s)", "a save holds training up for 1 s", "nvme takes 2 GB/s"):
        assert f"assumed               {assumed}" in text
    assert main(["ckpt", "plan", str(job), "--shard-bytes", "10GB", "--failures", "meta"]) == 0
    assert "mean time to failure of 7.9 h for jobs of 1,024 GPUs" in capsys.readouterr().out


@pytest.mark.parametrize(("flags", "expected"), [
    (["--node-memory", "30GB"], "memory: each node needs 64.0 GB for checkpoints and has 30.0 GB: saves are dropped"),
    (["--step-s", "1", "--shared-gb-s", "1"], "shared: a flush takes 128 s and one is due every 10 s"),
    (["--step-s", "0.01", "--wire-gb-s", "1"], "memory: a save takes 8 s and one is due every 0 s: saves are dropped"),
    (["--mtbf-h", "0.05", "--restart-s", "600"], "failures: one comes every 11 s and costs more than that"),
    (["--nodes", "1"], "redundancy: one node has no other to hold its copies"),
])  # fmt: skip
def test_what_cannot_work_is_said_in_plain_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], expected: str
) -> None:
    found = outlook(capsys, write(tmp_path / "lower.yaml", LOWER), "--shard-bytes", "1GB", *flags)
    assert any(text.startswith(expected) for text in found["cannot_work"]), found["cannot_work"]
    (watch,) = found["watch"]
    assert watch.startswith("shared: milestones add ")


def test_without_a_lower_tier_a_loss_beyond_redundancy_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = write(tmp_path / "bare.yaml", "checkpoint: {memory: {every_steps: auto}}")
    (text,) = outlook(capsys, bare, "--shard-bytes", "1GB")["cannot_work"]
    assert "a loss beyond the redundancy loses the whole training; add shared or s3" in text


def events() -> Iterator[dict[str, Any]]:
    """Eight hours of two nodes with one fault: a step takes 2 s, a save 0.5 s of them, and a restart 40 s."""
    yield {"event": "attempt_start", "time": 0.0, "attempt": 0, "nodes": ["a", "b"], "rung": "start"}
    for save in range(1, 20):
        time_s = 20.5 * save
        yield {"event": "commit", "time": time_s, "tier": "memory", "step": 10 * save, "bytes": 8 * 10**9,
               "seconds": 1.5, "stall_s": 0.5}  # fmt: skip
    yield {"event": "commit", "time": 395.0, "tier": "shared", "step": 100, "bytes": 8 * 10**9, "seconds": 12.0}
    yield {"event": "fault", "time": 400.0, "attempt": 0, "node": "b", "kind": "process", "step": 190}
    yield {"event": "attempt_end", "time": 401.0, "attempt": 0, "step": 190}
    yield {"event": "attempt_start", "time": 410.0, "attempt": 1, "nodes": ["a", "b"], "rung": "process"}
    yield {"event": "first_step", "time": 440.0, "attempt": 1, "step": 191, "seconds": 30.0}
    yield {"event": "job_end", "time": 410.0 + 8 * 3600}


def test_a_jobs_record_gives_what_is_not_given(
    tmp_path: Path, job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = measured(map(as_event, events()))
    assert (found.step_s, found.stall_s, found.restart_s, found.faults) == (pytest.approx(2.0), 0.5, 40.0, 1)
    assert found.commit_s == {"memory": 1.5, "shared": 12.0} and found.state_bytes == 8 * 10**9
    assert found.node_hours == pytest.approx(16.2, rel=0.01)
    folder = tmp_path / "runs" / "7"
    folder.mkdir(parents=True)
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events()))
    monkeypatch.setattr(checkpoint_plan, "find_job", lambda name: SimpleNamespace(folder=folder))
    shown = outlook(capsys, write(tmp_path / "lower.yaml", LOWER), "--measured", "7", "--stall-s", "0.25")
    assert (shown["step_s"], shown["stall_s"]) == (pytest.approx(2.0), 0.25)
    assert shown["failures"].startswith("1 in 16 hours of nodes of job 7") and shown["tiers"][1]["commit_s"] == 12.0
