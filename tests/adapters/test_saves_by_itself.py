"""A script that saves by itself, and names its files with `progress:`, goes on from them after a fault."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from disturbed import broken, ends, samples, undisturbed
from main_job import Watch


def test_a_killed_worker_changes_nothing_and_the_job_has_seen_its_file(tmp_path: Path) -> None:
    bare = undisturbed("plain_script.py", tmp_path / "bare")
    own = {"checkpoint": None, "progress": str(tmp_path / "out" / "ckpt*.pt")}
    out = broken("plain_script.py", tmp_path, "0:1:12:0:die", env={}, spares=0, **own)
    assert str(out / "ckpt.pt") in files(tmp_path)
    assert samples(out) == samples(bare)
    assert ends(out) == ends(bare)


@pytest.mark.faults
def test_torch_checkpointing_changes_nothing_after_a_killed_worker_and_a_lost_node(
    tmp_path: Path, frameworks: Callable[..., None]
) -> None:
    frameworks("torch_checkpointing")
    changes_nothing(tmp_path, "0:1:14:0:die", "1:1:25:0:wait", env={})
    assert any(file.endswith("/model_0.pt") for file in files(tmp_path))


@pytest.mark.faults
def test_a_worker_is_killed_during_an_asynchronous_save_of_torch_checkpointing(
    tmp_path: Path, frameworks: Callable[..., None]
) -> None:
    """The save of step 15 never gets its name: step 12 comes back. No process of the attempt before writes any more."""
    frameworks("torch_checkpointing")
    env = {"ASYNC": "1", "STOPPED": "step-015"}
    out = changes_nothing(tmp_path, "0:1:16:0:die", "1:1:25:0:wait", env=env)
    assert min(resumed(out, attempt=1)) == 12


def changes_nothing(tmp_path: Path, *faults: str, env: dict[str, str]) -> Path:
    """A job of torch_checkpointing with these faults ends with what one without them ends with. Returns its notes."""
    script, preload = "torch_checkpointing_script.py", ["torch_checkpointing"]
    bare = undisturbed(script, tmp_path / "bare", preload=preload)
    own = {"checkpoint": None, "progress": str(tmp_path / "out" / "step-*" / "model_0.pt")}
    out = broken(script, tmp_path, *faults, env=env, preload=preload, **own)
    assert samples(out) == samples(bare)
    assert ends(out) == ends(bare)
    return out


def resumed(out: Path, attempt: int) -> set[int]:
    """The steps that an attempt has trained."""
    notes = out.glob(f"seen-0-{attempt}-*")
    return {json.loads(line)[0] for path in notes for line in path.read_text().splitlines()}


def files(folder: Path) -> set[str]:
    """The files that the job has seen as its progress."""
    (events,) = folder.glob("*/events.jsonl")
    return {event["file"] for event in Watch(events.parent).events("own_checkpoint")}
