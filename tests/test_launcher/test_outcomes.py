"""The words for ends, faults, stops and rungs stand in one place each: events, exit codes and pages have the same."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

import launcher
from launcher.connections.messages import FROM_RUNNER
from launcher.core.faults import FaultKind
from launcher.core.outcomes import FINAL, AttemptOutcome, JobOutcome
from launcher.core.rungs import Rung
from launcher.core.stop_reasons import StopReason
from launcher.diagnosis import FaultClass
from launcher.history.outcome import Outcome

PACKAGE = Path(launcher.__file__).parent
FAULTS_PAGE = PACKAGE.parent / "docs" / "internals" / "faults.md"
WORDS = (AttemptOutcome, JobOutcome, FaultKind, StopReason, Rung, FaultClass)
HOMES = {"core/outcomes.py", "core/faults.py", "core/stop_reasons.py", "core/rungs.py", "diagnosis/rules.py"}


def test_the_page_of_faults_has_the_exit_code_of_each_outcome() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", FAULTS_PAGE.read_text(), re.MULTILINE)
    told = [outcome for outcome in JobOutcome if outcome is not JobOutcome.SUPERSEDED]  # the other supervisor has one
    assert {(int(code), name) for code, name in rows} == {(outcome.exit_code, outcome.value) for outcome in told}


def test_no_failure_has_the_exit_code_of_another_or_of_a_wrong_command_line() -> None:
    failures = [outcome.exit_code for outcome in FINAL if outcome.exit_code]
    assert len(failures) == len(set(failures)) and 2 not in failures


def test_words_without_a_second_meaning_are_written_out_in_their_home_alone() -> None:
    """For example user_error. Words as done are those of events or messages too; types hold them."""
    words = {word.value for kind in WORDS for word in kind if "_" in word.value} - FROM_RUNNER.messages.keys()
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno} {node.value}"
        for path in PACKAGE.rglob("*.py")
        if path.relative_to(PACKAGE).as_posix() not in HOMES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in words
    ]
    assert found == []


@pytest.mark.parametrize("word", [word for kind in WORDS for word in kind], ids=repr)
def test_a_word_is_written_and_found_as_its_text(word: str) -> None:
    assert json.loads(json.dumps({"word": word})) == {"word": str(word)}
    assert f"{word}" == type(word)(str(word))


def test_a_result_of_an_unknown_outcome_is_no_outcome(tmp_path: Path) -> None:
    ended = Outcome(name=JobOutcome.FABRIC, step=7, reason="no EFA", seconds=1.5)
    ended.write(tmp_path, "7")
    written = json.loads((tmp_path / "result.json").read_text())
    assert written == ended.to_mapping() | {"run_id": "7"} and written["exit_code"] == 14
    assert Outcome.read(tmp_path) == ended
    (tmp_path / "result.json").write_text(json.dumps(written | {"name": "eaten"}))
    assert Outcome.read(tmp_path) is None
