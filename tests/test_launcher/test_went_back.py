"""What a user reads of a job that went back, began anew or kept nothing: console, status, outcome and exit code."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from launcher.core.outcomes import JobOutcome
from launcher.history.fields import describe
from launcher.history.outcome import Outcome, done, is_unsaved, unsaved
from launcher.history.status import JobStatus, status_of
from launcher.job.registry import KnownJob
from launcher.job.supervisor_process import Process
from launcher.submission.job_control import corrected

RESTORE: dict[str, Any] = {"event": "restore", "tier": "shared", "namespace": "gpt", "seconds": 0.2}


def status(*events: dict[str, Any]) -> JobStatus:
    start = {"event": "job_start", "run_id": "r", "cluster": "local"}
    return status_of([{**event, "time": float(at)} for at, event in enumerate([start, *events])], 10.0)


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (
            {**RESTORE, "step": 20, "skipped": [{"step": 30, "reason": "written by\nHoldfast 9"}]},
            "continues from step 20; step 30 is passed over: written by Holdfast 9",
        ),
        (
            {**RESTORE, "step": 0, "left": ["line 1234abcd up to step 50: start_fresh"]},
            "begins at step 0; stays aside: line 1234abcd up to step 50: start_fresh",
        ),
        (
            {"event": "line", "step": 5, "newest": 50},
            "the save of step 5 continues no step: the script did not load; the newest step of the namespace is 50",
        ),
        (
            {"event": "line", "step": 15, "origin": 10, "newest": 50},
            "the save of step 15 continues from step 10; the newest step of the namespace is 50",
        ),
    ],
)
def test_each_time_that_an_older_step_is_taken_is_in_status_console_and_outcome(
    event: dict[str, Any], words: str
) -> None:
    found = status(event, {"event": "commit", "step": 60, "tier": "shared"})
    assert found.went_back == (words,)
    assert done(found) == f"kept: step 60 in shared; {words}"
    assert words.rpartition("; ")[2] in describe(event)


def test_a_run_that_continues_the_newest_step_says_nothing_of_it() -> None:
    found = status(
        {**RESTORE, "step": 20, "skipped": [], "left": []}, {"event": "loaded", "step": 20, "tier": "memory"}
    )
    assert found.went_back == ()


def test_what_was_loaded_is_what_is_shown() -> None:
    loaded = {"event": "loaded", "step": 10, "tier": "shared", "namespace": "gpt", "newest": 40, "seconds": 0.5}
    assert describe(loaded) == (
        "restored step 10 of namespace gpt from shared in 0.50 s; newer steps up to 40 are not loaded"
    )
    other = {**loaded, "newest": 10, "whose": "script /b/train.py, user ann"}
    assert (
        describe(other)
        == "restored step 10 of namespace gpt, saved by script /b/train.py, user ann, from shared in 0.50 s"
    )


def test_a_job_that_made_no_step_says_so_at_its_end() -> None:
    loaded = {"event": "loaded", "attempt": 0, "step": 20, "tier": "shared"}
    end = {"event": "attempt_end", "attempt": 0, "outcome": "done"}
    for step in (None, 20):
        found = status(loaded, {**end, "step": step})
        assert done(found) == "made no step: the script loaded step 20, and ended there"
    assert done(status(loaded, {**end, "step": 21})) == ""
    assert done(status({**end, "step": None})) == "", "a script that loads nothing may have no steps"
    failed = [loaded, {**end, "outcome": "fault"}, {"event": "attempt_start", "attempt": 1}]
    assert done(status(*failed, {**end, "attempt": 1, "step": 20})) == ""


def test_a_job_that_kept_nothing_ends_otherwise_than_done() -> None:
    failed = {
        "event": "problem",
        "what": "flush to the shared tier failed",
        "failed": "shared",
        "step": 10,
        "detail": "full",
    }
    nothing = status({"event": "commit", "step": 10, "tier": "memory"}, failed)
    assert is_unsaved(nothing, ["shared"]) and "kept: no step: memory is freed with the job" in done(nothing)
    assert unsaved(nothing) == "not saved in shared: no step is there (step 10: flush to the shared tier failed: full)"
    assert not is_unsaved(nothing, []), "memory alone was asked for"
    assert not is_unsaved(status(), ["shared"]), "the script has never saved"
    assert not is_unsaved(status({"event": "commit", "step": 10, "tier": "s3"}), ["shared", "s3"])
    assert (JobOutcome.UNSAVED.exit_code, JobOutcome.UNRESTORABLE.exit_code) == (15, 16)


def test_a_job_that_was_cancelled_early_is_not_lost(tmp_path: Path) -> None:
    job = KnownJob(job_id="1", name="gpt", cluster="local", folder=tmp_path, nodes=1, spares=0)
    gone = replace(Process.of_pid(os.getpid()), start_ticks=1)
    (tmp_path / "process.json").write_text(json.dumps(asdict(gone)))
    assert corrected(job, JobStatus()).state == "lost"
    Outcome(name=JobOutcome.CANCELLED, step=None, reason="cancelled before it began", seconds=0.0).write(tmp_path, "1")
    assert (corrected(job, JobStatus()).state, corrected(job, JobStatus()).reason) == (
        "cancelled",
        "cancelled before it began",
    )
