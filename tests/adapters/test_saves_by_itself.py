"""A script that saves by itself, and names its file with `progress:`, goes on from that file after a fault."""

from __future__ import annotations

from pathlib import Path

from disturbed import HERE, ends, samples, undisturbed
from main_job import Watch

from launcher import Executor, JobSpec

SCRIPT = "plain_script.py"


def test_a_killed_worker_changes_nothing_and_the_job_has_seen_its_file(tmp_path: Path) -> None:
    bare = undisturbed(SCRIPT, tmp_path / "bare")
    out = tmp_path / "out"
    out.mkdir()
    mapping = {
        "name": "plain", "script": str(HERE / SCRIPT), "nodes": 2, "progress": str(out / "ckpt*.pt"),
        "env": {"OUT": str(out), "KILL": "1"},
    }  # fmt: skip
    spec = JobSpec.from_mapping(mapping, HERE, "adapters' test")
    submitted = Executor(folder=tmp_path / "%j", cluster="local").submit(spec)
    watch = Watch(submitted.paths.folder)
    try:
        assert submitted.result()["name"] == "done", watch.story()
    except BaseException:
        submitted.cancel(check=False)
        raise
    assert len(watch.events("attempt_start")) == 2
    assert str(out / "ckpt.pt") in {event.get("file") for event in watch.events("own_checkpoint")}, watch.story()
    assert samples(out) == samples(bare)
    assert ends(out) == ends(bare)
