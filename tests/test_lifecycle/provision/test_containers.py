"""enroot's directories belong to one user each: another user can neither make them first nor look into them."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from provision_kit import bare, node_of

from lifecycle.provision.steps.containers import Containers
from slurm.hooks.directories import make_user_dir
from slurm.hooks.hook import HookJob
from slurm.testbed.plan import account

USER, STRANGER = account("nobody").pw_uid, account("daemon").pw_uid


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that all users may pass: pytest closes the folders above tmp_path whenever another session starts."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.skipif(os.geteuid() != 0, reason="acts as two users")
def test_a_stranger_neither_plants_nor_reads_what_enroot_keeps(tmp_path: Path, open_folder: Path) -> None:
    disk = open_folder
    node = node_of(bare(tmp_path / "root"), enroot=True, nvme={"mount": str(disk)})
    conf = next(text for path, text in Containers()._files(node).items() if path.endswith("90-holdfast.conf"))
    paths = [line.split(" ", 1)[1] for line in conf.splitlines()]
    assert len(paths) == 4

    def attempt(script: str, uid: int) -> int:
        """enroot's shell expands the paths as the user who runs it; `id` stands for the one attacked."""
        expanded = " ".join(f'"{path}"' for path in paths).replace("$(id -u)", str(USER))
        return subprocess.run(
            ["/bin/sh", "-c", f"for path in {expanded}; do {script} || exit 1; done 2>/dev/null"],
            user=uid, group=uid, extra_groups=[], check=False,
        ).returncode  # fmt: skip

    make, read = 'mkdir -p "$path"', 'ls "$path"'
    assert attempt(make, STRANGER) != 0
    assert list(disk.iterdir()) == []
    for uid in (USER, STRANGER):
        make_user_dir(str(disk), HookJob(job_id=1, uid=uid, gid=uid, cluster="c"))
    assert attempt(make, STRANGER) != 0 and attempt(read, STRANGER) != 0
    assert attempt(make, USER) == 0 and attempt(read, USER) == 0
