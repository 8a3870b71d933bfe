"""The examples in the pages on elastic jobs are what they say they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast import Checkpointer
from launcher.cli import main
from launcher.job.booster_checks import require_booster
from launcher.job.jobfile import load_job
from slurm.preemption_conf import lint_elastic

ROOT = Path(__file__).resolve().parents[2]
ADMIN, GUIDE = (ROOT / "docs" / folder / "elastic.md" for folder in ("admin", "guide"))


def blocks(page: Path, language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [text for word, text in found if word == language]


def test_a_slurm_conf_of_two_teams_lacks_nothing() -> None:
    found = [block for block in blocks(ADMIN, "") if "PartitionName=" in block]
    assert len(found) == 2, "with accounts and without"
    assert [lint_elastic(block) for block in found] == [[], []]


@pytest.mark.parametrize("page", [ADMIN, GUIDE], ids=["admin", "guide"])
def test_a_job_file_can_be_loaded_and_grows(page: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (text,) = blocks(page, "yaml")
    (tmp_path / "job.yaml").write_text(text if "script:" in text else f"script: train.py\n{text}")
    spec = load_job(tmp_path / "job.yaml")
    require_booster(spec)
    assert (spec.booster_nodes, spec.most_boosters) == {ADMIN: (2, 4), GUIDE: (2, 2)}[page]


def test_the_script_calls_what_there_is() -> None:
    (text,) = blocks(GUIDE, "python")
    compile(text, str(GUIDE), "exec")
    called = re.findall(r"\bckpt\.(\w+)\(", text)
    assert len(called) >= 4 and [name for name in called if not hasattr(Checkpointer, name)] == []


def test_what_holdfast_prints_is_what_it_asks_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["node", "slurm-conf", "--elastic"]) == 0
    conf = tmp_path / "slurm.conf"
    printed = capsys.readouterr().out
    conf.write_text(printed.replace("# anywhere", "PartitionName=main Nodes=ALL Default=YES"))
    assert main(["node", "slurm-conf", "--elastic", "--lint", str(conf)]) == 0
    conf.write_text("PartitionName=all Nodes=ALL\n")
    assert main(["node", "slurm-conf", "--elastic", "--lint", str(conf)]) == 1
    said = capsys.readouterr().out
    assert f"{conf}: needed: PreemptType is not set, expected PreemptType=preempt/partition_prio" in said
