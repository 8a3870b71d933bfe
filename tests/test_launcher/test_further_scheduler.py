"""A further scheduler needs its package in launcher/clusters and its row in SCHEDULERS: jobs really run through one.

The scheduler is `shelf/` beside this file. A copy of the launcher has it as a package and as a row, and nothing else.
"""

from __future__ import annotations

import ast
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from holdfast.base.processes import end_all, pids_with_environment
from launcher.job.supervisor_process import Process
from launcher.scheduler import SCHEDULERS

pytestmark = pytest.mark.long(seconds=40)

ROOT = Path(__file__).parents[2]
ROW = '    "shelf": Registered("launcher.clusters.shelf.scheduler:ShelfScheduler", "the shelf"),\n'
SCRIPT = """
import os, pathlib, time
print("on", os.environ["HOLDFAST_NODE"], os.environ["SHELF_JOB"], flush=True)
while not pathlib.Path(os.environ["HOLDFAST_JOB_DIR"], "finish").exists():
    time.sleep(0.02)
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A launcher with the shelf."""
    found = tmp_path_factory.mktemp("tree")
    leave = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "launcher", found / "launcher", ignore=leave)
    shutil.copytree(Path(__file__).parent / "shelf", found / "launcher" / "clusters" / "shelf", ignore=leave)
    table = found / "launcher" / "scheduler" / "__init__.py"
    before, start, rows = table.read_text().partition("SCHEDULERS: Mapping[str, Registered] = {\n")
    table.write_text(before + start + ROW + rows)
    return found


@pytest.fixture
def home(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with two job files: `job.yaml` has a spare, `next.yaml` has not."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tree))
    monkeypatch.setenv("SHELF_DIR", str(tmp_path / "shelf"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "train.py").write_text(SCRIPT)
    job = "script: train.py\nnodes: 1\ngpus_per_node: 0\n"
    (tmp_path / "job.yaml").write_text(f"name: first\nspares: 1\n{job}")
    (tmp_path / "next.yaml").write_text(f"name: next\n{job}")
    yield tmp_path
    asyncio.run(end_all(lambda: pids_with_environment({"SHELF_DIR": str(tmp_path / "shelf")}), 10))


def holdfast(*words: str, code: int = 0) -> str:
    """What a command prints."""
    argv = [sys.executable, "-P", "-m", "launcher", *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def submit(job_file: str) -> tuple[str, Path]:
    """Its id and its folder."""
    said = json.loads(holdfast("submit", job_file, "--cluster", "shelf", "--json"))
    return said["job_id"], Path(said["folder"])


def status(job_id: str) -> dict[str, Any]:
    return dict(json.loads(holdfast("status", job_id, "--json")))


def runs(folder: Path, attempt: int = 0) -> Callable[[], bool]:
    """Whether a job's script has written in an attempt."""
    return lambda: any(path.read_text() for path in folder.glob(f"log/attempt-{attempt}/*rank*"))


def test_a_job_recovers_and_ends_and_another_leaves_the_queue(home: Path) -> None:
    (first, folder), (second, _) = submit("job.yaml"), submit("next.yaml")
    assert (first, second) == ("1", "2")
    until(runs(folder))
    waiting = status(second)
    assert (waiting["state"], waiting["reason"]) == ("pending", "waits on the shelf")
    assert waiting["job"]["cluster"] == "shelf"
    assert "has left the queue" in holdfast("stop", second) and status(second)["state"] == "halted"
    runner = min(  # it forks
        pid
        for pid in pids_with_environment({"HOLDFAST_RUN_ID": "shelf-1", "SHELF_NODE": "shelf0"})
        if b"launcher.runner\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
    )
    os.kill(runner, signal.SIGKILL)
    until(runs(folder, 1))
    assert status(first)["nodes"] == ["shelf1"]
    (folder / "finish").touch()
    assert "done" in holdfast("wait", first)
    assert holdfast("logs", first).splitlines()[-1] == "on shelf1 1"
    assert "shelf0 left the job" in holdfast("why", first)
    assert 'cluster="shelf"' in holdfast("metrics", first)
    assert json.loads(holdfast("report", first, "--json"))
    assert {"1", "2", "shelf"} <= {*holdfast("status").split()}


def test_a_job_whose_supervisor_was_killed_is_lost_and_a_cancelled_one_is_cancelled(home: Path) -> None:
    (lost, folder), (waiting, _) = submit("next.yaml"), submit("next.yaml")
    shutil.rmtree(home / "state")  # the jobs are found by their folders
    until(runs(folder))
    assert status(waiting)["state"] == "pending"
    assert "cancelled" in holdfast("cancel", waiting) and status(waiting)["state"] == "cancelled"
    process = Process.read(home / "shelf" / lost)
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    until(lambda: not process.alive())
    assert status(lost)["state"] == "lost"
    running, folder = submit("next.yaml")
    until(runs(folder))
    assert "cancelled" in holdfast("cancel", running) and status(running)["state"] == "cancelled"


def test_the_jobs_of_one_batch_are_submitits_jobs(home: Path) -> None:
    (home / "finish.py").write_text("print('said')")
    program = """
from launcher import Executor, Torchrun
executor = Executor(cluster="shelf")
executor.update_parameters(nodes=1)
with executor.batch():
    jobs = [executor.submit(Torchrun("finish.py")) for _ in range(2)]
print([(job.result()["name"], job.status().state, job.stdout()) for job in jobs])
jobs[0].cancel()
"""
    argv = [sys.executable, "-P", "-c", program]
    found = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert found.stdout == f"{[('done', 'done', chr(10).join(['said', '']))] * 2}\n", found.stderr


def test_a_batch_script_of_the_users_own_supervises_its_job(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "in no job of a scheduler" in holdfast("supervise", "next.yaml", code=2)
    monkeypatch.setenv("SHELF_JOB", "7")
    monkeypatch.setenv("SHELF_NODES", "a")
    (home / "runs" / "7").mkdir(parents=True)
    (home / "runs" / "7" / "finish").touch()
    holdfast("supervise", "next.yaml")
    assert (status("7")["state"], status("7")["job"]["cluster"]) == ("done", "shelf")


def test_what_a_verb_says_of_schedulers_has_all_of_them(home: Path) -> None:
    for verb in ("submit", "doctor"):
        assert "shelf, slurm or local" in holdfast(verb, "--help")
        assert "got 'attic', expected one of shelf, slurm, local" in holdfast(
            verb, "next.yaml", "--cluster", "attic", code=2
        )
    assert holdfast("submit", "next.yaml", "--cluster", "shelf", "--dry-run") == "nodes 1\n"
    assert "no options for the shelf" in holdfast("submit", "next.yaml", "--cluster", "shelf", "-p", "train", code=2)
    rows = json.loads(holdfast("doctor", "next.yaml", "--cluster", "shelf", "--json"))["findings"]
    assert {"shelf", "node", "job_folder", "rendezvous"} <= {row["name"] for row in rows}


# Modules that may compare with the name of a scheduler, because the word means something else there.
OTHER_WORDS = {
    "launcher/job/jobfile.py": "the section `slurm`",
    "launcher/job/registry.py": "the id of a Slurm job in the id of its run",
    "launcher/submission/in_allocation.py": "submitit's own executor `local`",
}


def test_no_module_beside_the_schedulers_knows_one_by_name() -> None:
    """Nor imports one, except what shows Slurm's queue of all users."""
    wrong = set()
    for path in sorted((ROOT / "launcher").rglob("*.py")):
        name = str(path.relative_to(ROOT))
        if name.startswith(("launcher/clusters/", "launcher/scheduler/")):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare) and name not in OTHER_WORDS:
                words = {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)}
                wrong |= {f"{name}:{node.lineno}"} if words & SCHEDULERS.keys() else set()
            if isinstance(node, ast.ImportFrom) and name != "launcher/screen/cluster_jobs.py":
                module = f"{node.module}."
                wrong |= {f"{name}:{node.lineno}"} if module.startswith(_PACKAGES) else set()
    assert not wrong


_PACKAGES = tuple(f"launcher.clusters.{name}." for name in SCHEDULERS)
