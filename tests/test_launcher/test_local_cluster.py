"""What the local cluster needs of the machine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from launcher import Executor
from launcher.errors import UsageError
from launcher.job.jobfile import JobSpec
from launcher.supervisor import supervise


def test_a_job_with_checkpoints_and_without_mpirun_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s.py").touch()
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    plain = {"script": "s.py", "nodes": 2}
    spec = JobSpec.from_mapping(plain | {"checkpoint": {"memory": {"every_steps": 10}}}, tmp_path)
    with pytest.raises(UsageError, match=r"mpirun: not found; .*pip install"):
        supervise(spec, tmp_path / "job", "local")
    with pytest.raises(UsageError, match="mpirun: not found"):
        Executor(folder=tmp_path / "runs" / "%j", cluster="local").submit(spec)
    assert not list((tmp_path / "runs").iterdir()) and not (tmp_path / "job" / "log" / "runner-node0.log").exists()
