"""A job, and where hooks find its files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hooks_kit import JOB, USER

from slurm.hooks.hook import HookJob
from slurm.hooks.places import Places
from slurm.testbed.plan import account


@pytest.fixture
def places(tmp_path: Path) -> Places:
    memory = tmp_path / "memory"
    memory.mkdir()
    memory.chmod(0o1777)
    for level in (tmp_path, *tmp_path.parents):  # pytest's own are for root alone
        if level.stat().st_mode & 0o005 != 0o005:
            level.chmod(0o755)
    return Places(root=tmp_path / "root", memory=memory)


@pytest.fixture
def job() -> HookJob:
    return HookJob(job_id=JOB, uid=USER, gid=account("nobody").pw_gid, cluster="c")
