"""`holdfast ckpt plan` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.cli import main

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
