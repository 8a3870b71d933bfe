"""`holdfast why`: each fault with its class, what was done, what it cost, and what to do."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from history_kit import HANG, LOST_NODE, START, event
from rich.console import Console

from launcher.cli.app import main
from launcher.history.status import JobStatus, status_of
from launcher.history.why import stories
from launcher.report.facts import facts_of
from launcher.report.tables import tables_of
from launcher.screen.why import why_page

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=12, GPU has fallen off the bus."
CLASSED = {"class": "gpu", "domain": "node", "proof": XID, "advice": "reset its GPUs", "alike": 1, "consequences": 7}
OF_CLASS = [each | CLASSED if each["event"] == "fault" else each for each in HANG]
MISSING = event(
    150, "fault", attempt=2, kind="user_error", node="n1", rank=0, step=77, reason="rank 0 on n1 exited with code 1",
    proof="ModuleNotFoundError: No module named 'x'", domain="user", advice="install it", **{"class": "import"},
)  # fmt: skip
END = [
    MISSING,
    event(151, "attempt_end", attempt=2, outcome="fault", step=78),
    event(152, "job_end", outcome="not_retried", reason="no module", step=78),
]
WHOLE = [*START, *LOST_NODE, *OF_CLASS, *END]


def page(events: list[dict[str, Any]], width: int, most: int = 10) -> str:
    out = io.StringIO()
    status = status_of(events, now_s=200) if events else JobStatus()
    Console(file=out, width=width).print(why_page(stories(events), status, "7  gpt", most))
    return out.getvalue()


def test_each_fault_has_what_was_done_and_what_it_cost() -> None:
    lost, gpu, missing = stories(WHOLE)
    assert (lost.node, lost.left, lost.joined, lost.rung) == ("n2", ("n2",), ("n3",), "spare")
    assert (lost.step_resumed, lost.restored_from, lost.steps_again, lost.cost_s) == (10, "memory", 10, 10.0)
    assert (gpu.fault_class, gpu.domain, gpu.proof, gpu.rank) == ("gpu", "node", XID, 0)
    assert (gpu.steps_again, gpu.cost_s, gpu.outcome) == (0, 25.0, "")
    assert (missing.step, missing.rung, missing.outcome, missing.steps_again) == (78, "", "not_retried", None)


def test_faults_of_one_attempt_are_one_story_and_those_of_the_next_attempt_another() -> None:
    second = event(31.5, "fault", attempt=0, kind="hang", node="n1", reason="no step")
    again = event(36, "fault", attempt=1, kind="process_exit", node="n3", reason="exited with code 7")
    told = stories([*START, *LOST_NODE[:1], second, *LOST_NODE[1:6], again])
    assert [(story.kind, story.further) for story in told] == [
        ("node_lost", ("hang on n1: no step",)), ("process_exit", ()),
    ]  # fmt: skip
    assert told[0].cost_s == 6.0 and told[1].cost_s is None


def test_a_fault_of_a_node_that_does_not_train_is_no_story() -> None:
    assert not stories([*START, event(30, "fault", kind="booster_start", node="n9", reason="late")])


@pytest.mark.parametrize("width", [80, 200])
def test_the_page_fits_its_width_and_has_every_fact(width: int) -> None:
    text = page(WHOLE, width)
    assert max(map(len, text.splitlines())) <= width
    joined = " ".join(text.split())
    for fact in (
        "3, which cost 37.0 s and 10 steps done again", "node_lost n2, attempt 0", "n2 left the job",
        "7 ranks failed as a",
        XID, "1 other rank failed in the same way", "import (user)", "ended as not_retried", "exit code 17",
        "install it",
    ):  # fmt: skip
        assert fact in joined, fact


def test_a_fault_that_is_not_over_has_no_cost_and_the_advice_names_the_attempts_folder() -> None:
    advice = "log/attempt-N/rank-*.stack has the stacks of all ranks"
    hang = event(60, "fault", attempt=3, kind="hang", reason="no step", domain="unknown", advice=advice)
    (story,) = stories([*START, hang])
    assert story.advice == "log/attempt-3/rank-*.stack has the stacks of all ranks"
    text = " ".join(page([*START, hang], 80).split())
    assert "faults 1, which is not over yet" in text and "cost not over yet" in text
    text = " ".join(page([*START, *LOST_NODE, hang], 80).split())
    assert "faults 2, which cost 10.0 s and 10 steps done again, the last one not over yet" in text


def test_of_many_faults_the_page_shows_the_newest_and_counts_the_others() -> None:
    text = page(WHOLE, 80, most=1)
    assert "earlier: 2 faults (1 node_lost, 1 gpu)" in text
    assert XID not in text


def test_a_job_without_faults_says_so() -> None:
    assert "none so far" in page(START, 80)
    done = page([*START, event(40, "job_end", outcome="done", step=20)], 80)
    assert [line.split() for line in done.splitlines()][-1] == ["faults", "none"]
    failed = page([*START, event(40, "job_end", outcome="internal", reason="no folder", step=20)], 80)
    assert "none: the reason above ended the job" in failed


def test_the_page_names_slow_nodes_and_those_that_are_out() -> None:
    slow = event(22, "straggler", attempt=0, node="n1", rank=0, factor=1.3, part="data", excess_s=0.02, since=9.0)
    text = " ".join(page([*START, *LOST_NODE[:3], slow], 200).split())
    assert "slow n1 rank 0 works 1.30 times as long" in text and "out n2 " in text


def test_the_verb_the_status_and_the_report_tell_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "7"
    folder.mkdir(parents=True)
    (folder / "events.jsonl").write_text("".join(json.dumps(each) + "\n" for each in WHOLE))
    assert main(["why", str(folder), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [fault["class"] for fault in told["faults"]] == ["unknown", "gpu", "import"]
    assert main(["status", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["why"] == told["faults"]
    (table,) = [each for each in tables_of(facts_of(WHOLE), {}) if each.name == "why"]
    shown = [dict(zip((column.name for column in table.columns), row, strict=True)) for row in table.rows]
    assert [(row["fault_class"], row["cost_s"], row["done"]) for row in shown] == [
        (fault["class"], fault["cost_s"], fault["done"]) for fault in told["faults"]
    ]
