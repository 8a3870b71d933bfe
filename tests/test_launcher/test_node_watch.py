"""What a runner reads of its node's kernel and cgroup."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.runner.node_watch import NodeWatch

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=12, GPU has fallen off the bus."


def watch(tmp_path: Path, own: str) -> NodeWatch:
    (tmp_path / "own").write_text(own)
    return NodeWatch(tmp_path / "kmsg", tmp_path, tmp_path / "own")


@pytest.mark.parametrize(("own", "file"), [
    ("0::/system.slice/job_7/step_0\n", "system.slice/job_7/step_0/memory.events"),
    ("9:cpu:/x\n8:memory:/slurm/job_7\n", "memory/slurm/job_7/memory.oom_control"),
])  # fmt: skip
def test_only_kills_since_the_attempts_start_count(tmp_path: Path, own: str, file: str) -> None:
    events = tmp_path / file
    events.parent.mkdir(parents=True)
    events.write_text("oom 3\noom_kill 2\n")
    node = watch(tmp_path, own)
    node.begin()
    assert node.collect()["oom_kills"] == 0
    events.write_text("oom 5\noom_kill 4\n")
    assert node.collect()["oom_kills"] == 2


def test_only_messages_that_tell_something_and_are_not_a_processs_own_words_are_reported(tmp_path: Path) -> None:
    (tmp_path / "kmsg").write_text(f"4,1,1,-;{XID}\n")
    node = watch(tmp_path, "0::/none\n")
    node.begin()
    assert node.collect() == {"oom_kills": 0, "kernel": []}
    with (tmp_path / "kmsg").open("a") as file:
        file.write(f"4,2,9,-;{XID}\n")
    assert node.collect()["kernel"] == [XID]
    with (tmp_path / "kmsg").open("a") as file:
        file.write(f"4,3,9,-;python[12]: {XID}\n")
    assert node.collect()["kernel"] == []
    with (tmp_path / "kmsg").open("a") as file:
        file.write("4,4,9,-;usb 1-1: new device\n")
    assert node.collect()["kernel"] == []
    node.close()


def test_a_node_without_cgroups_and_messages_reports_nothing(tmp_path: Path) -> None:
    node = watch(tmp_path, "")
    node.begin()
    assert node.collect() == {"oom_kills": 0, "kernel": []}
