"""What docs/admin/hooks.md and docs/guide/job_file.md print is what the commands print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from launcher.cli import main
from slurm.conf import hook_lines, lint

ROOT = Path(__file__).resolve().parents[1]
HOOKS = (ROOT / "docs/admin/hooks.md").read_text()
JOB_FILE = (ROOT / "docs/guide/job_file.md").read_text()
LIMITS = re.findall(r"^\| `(\w+)` \| (\d+)(?: to |, )(\d+) \| (\d+) \|", HOOKS, re.MULTILINE)


def test_the_lines_for_slurm_conf_are_those_that_the_command_prints() -> None:
    assert f"```\n{chr(10).join(hook_lines())}\n```" in HOOKS


@pytest.mark.parametrize(("parameter", "least", "most", "advised"), LIMITS)
def test_the_lint_accepts_what_the_page_says(parameter: str, least: str, most: str, advised: str) -> None:
    def remark(value: int) -> str:
        found = {each.parameter: each.expected for each in lint(f"{parameter}={value}\n")}
        return found.get(parameter, "")

    assert remark(int(least)) == remark(int(most)) == ""
    assert remark(int(most) + 1) == f"{parameter}={advised}"


def test_the_lints_table_is_read() -> None:
    assert len(LIMITS) == 5


def test_the_large_jobs_plan_is_what_the_command_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    section = JOB_FILE.partition("## A job of 64 nodes")[2]
    (job,) = re.findall(r"^```yaml\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    (printed,) = re.findall(r"^```\n(64 nodes.*?)^```", section, re.MULTILINE | re.DOTALL)
    (tmp_path / "train.py").touch()
    (tmp_path / "job.yaml").write_text(job)
    assert main(["ckpt", "plan", str(tmp_path / "job.yaml"), "--state-bytes", "140GB"]) == 0
    assert capsys.readouterr().out == printed
