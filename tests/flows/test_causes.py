"""Real jobs that fail, each in its way: what `holdfast why` says of them, and what follows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from memory_cgroup import memory_cgroup

pytestmark = pytest.mark.long(seconds=60)

LIMIT_BYTES = 1200 << 20  # room for a runner and two workers with torch, and not for 4 GiB more

MISSING = "import a_module_that_nobody_has\n"
FULL = "open('/dev/full', 'w').write('x' * 100_000)\n"
NAN = """
import time
import torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 1:
    print("WARNING: loss is nan", flush=True)
time.sleep(600)
"""
HUNGRY = """
import torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 1:
    kept = [bytearray(b"x" * (64 << 20)) for _ in range(64)]
dist.barrier()
"""


def run(folder: Path, script: str, *, prefix: tuple[str, ...] = (), **keys: Any) -> tuple[int, dict[str, Any]]:
    """Runs a job to its end. Returns its exit code, and what `holdfast why --json` says."""
    (folder / "train.py").write_text(script)
    (folder / "job.yaml").write_text(json.dumps({"script": "train.py", "gpus_per_node": 0, **keys}))
    holdfast = [sys.executable, "-m", "launcher"]
    command = [*prefix, *holdfast, "run", "job.yaml"]
    ended = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True, timeout=150)
    (job,) = (folder / "runs").iterdir()
    why = subprocess.run([*holdfast, "why", str(job), "--json"], check=True, capture_output=True, text=True, timeout=60)
    return ended.returncode, json.loads(why.stdout)


def test_a_missing_module_ends_a_job_after_one_attempt(tmp_path: Path) -> None:
    code, why = run(tmp_path, MISSING)
    (fault,) = why["faults"]
    assert (code, why["state"], fault["attempt"], fault["rung"]) == (17, "not_retried", 0, "")
    assert (fault["class"], fault["domain"], fault["rank"]) == ("import", "user", 0)
    assert fault["proof"] == "ModuleNotFoundError: No module named 'a_module_that_nobody_has'"


def test_a_full_file_system_is_tried_again_unless_the_job_file_says_otherwise(tmp_path: Path) -> None:
    for name, keys, attempts in (("stop", {"restart": {"on": {"storage_full": "stop"}}}, 1), ("by itself", {}, 2)):
        (tmp_path / name).mkdir()
        code, why = run(tmp_path / name, FULL, **keys)
        assert [fault["class"] for fault in why["faults"]] == ["storage_full"] * attempts
        assert code == (17 if attempts == 1 else 10)


def test_a_line_of_a_worker_stops_a_job_that_would_go_on_for_ever(tmp_path: Path) -> None:
    rule = {"name": "nan", "pattern": "loss is nan", "action": "stop"}
    code, why = run(tmp_path, NAN, workers_per_node=2, log_rules=[rule])
    (fault,) = why["faults"]
    assert (code, fault["kind"], fault["class"], fault["rank"]) == (17, "log_rule", "loss", 1)
    assert "WARNING: loss is nan" in fault["proof"]


@pytest.fixture
def small_cgroup() -> Iterator[tuple[str, ...]]:
    """A program that runs a command in a cgroup with little memory."""
    with memory_cgroup(f"holdfast-{os.getpid()}", LIMIT_BYTES) as processes:
        yield ("sh", "-c", f'echo $$ > {processes} && exec "$@"', "sh")


def test_a_worker_that_the_kernel_kills_for_lack_of_memory_is_told_from_one_that_somebody_kills(
    tmp_path: Path, small_cgroup: tuple[str, ...]
) -> None:
    on = {"host_memory": "stop", "killed": "retry"}
    code, why = run(tmp_path, HUNGRY, prefix=small_cgroup, workers_per_node=2, restart={"on": on})
    (fault,) = why["faults"]
    assert (code, fault["class"], fault["rank"], fault["alike"]) == (17, "host_memory", 1, 0)
    assert fault["proof"] == "the kernel killed 1 of the node's processes, because memory was short"
