"""The warm process: why it cannot be one, and what it leaves of an attempt."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.processes import children, state_of, status_of
from launcher.connections.host_addresses import ranges
from launcher.runner.port import free_port
from launcher.runner.workers import Workers


@pytest.mark.parametrize(
    "error", ["ModuleNotFoundError: No module named 'torch'", "OSError: libcudart.so.12: not found"]
)
def test_a_python_that_cannot_load_torch_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str) -> None:
    kind, _, words = error.partition(": ")
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(f"raise {kind}({words!r})\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    reports: list[dict[str, Any]] = []
    asyncio.run(asyncio.wait_for(Workers(reports.append).run(), 60))
    (broken,) = reports
    assert broken["event"] == "broken" and broken["reason"].endswith(f"cannot load torch: {error}")
    assert broken["environment"]


def test_what_torch_itself_needs_is_named_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['torch.distributed.fsdp'] = None\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    reports: list[dict[str, Any]] = []
    asyncio.run(asyncio.wait_for(Workers(reports.append).run(), 60))
    (broken,) = reports
    assert broken["environment"] and "cannot load torch.distributed.checkpoint: ModuleNotFoundError" in broken["reason"]


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP"])
def test_a_signal_to_all_processes_of_a_step_does_not_end_it_while_torch_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Slurm sends one when it preempts or requeues a job that has just started."""
    (tmp_path / "torch").mkdir()
    lines = ["import os, signal", f"os.kill(os.getpid(), signal.SIG{name})", "raise ImportError('after the signal')"]
    (tmp_path / "torch" / "__init__.py").write_text("\n".join(lines))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    reports: list[dict[str, Any]] = []
    asyncio.run(asyncio.wait_for(Workers(reports.append).run(), 60))
    (broken,) = reports
    assert broken["reason"].endswith("cannot load torch: ImportError: after the signal")


def test_what_a_script_leaves_behind_is_ended_and_reaped(tmp_path: Path) -> None:
    """Its orphan ends long after the elastic agent: no zombie may stay until the next attempt's end."""
    script = tmp_path / "leaves.py"
    script.write_text(
        "import subprocess, sys\n"
        "daemon = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "open(sys.argv[1], 'w').write(str(daemon.pid))\n"
    )
    left = tmp_path / "pid"
    task = {
        "attempt": 3,
        "max_restarts": 0,
        "env": {},
        "script": str(script),
        "args": [str(left)],
        "workers": 1,
        "node_rank": 0,
        "nodes": 1,
        "master_addr": "127.0.0.1",
        "master_port": free_port(),
        "run_id": "run",
        "module": None,
        "extensions": None,
        "log_rules": [],
        "command": [],
        "log_dir": str(tmp_path),
        "hosts": ranges(["127.0.0.1"]),
        "rendezvous_timeout_s": 60,
        "agreed_stop": False,
        "measure_steps": False,
    }
    reports: list[dict[str, Any]] = []

    async def reported(event: str) -> dict[str, Any]:
        while True:
            if found := [report for report in reports if report["event"] == event]:
                return found[0]
            await asyncio.sleep(0.01)

    async def attempt() -> None:
        workers = Workers(reports.append)
        running = asyncio.create_task(workers.run())
        workers.start(task)
        ended = await reported("ended")
        assert ended["ok"], ended
        orphan = int(left.read_text())
        while children(int(status_of(orphan)["PPid"])) != [orphan]:  # the elastic agent has ended as well
            await asyncio.sleep(0.01)
        assert await workers.kill(5.0) == []
        while state_of(orphan):
            await asyncio.sleep(0.01)
        assert workers.warm
        await workers.close(5.0)
        running.cancel()

    asyncio.run(asyncio.wait_for(attempt(), 60))


def test_an_agent_that_is_killed_at_once_is_told_of_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its runner waits for that before it ends an attempt."""
    from launcher.runner import warm

    monkeypatch.setattr(warm, "_run_agent", lambda *args: os.kill(os.getpid(), signal.SIGKILL))
    tasks, _ = os.pipe()
    reads, reports = os.pipe()
    warm._Warm(tasks, reports)._fork({"attempt": 1})
    os.close(reports)
    with open(reads) as lines:
        (told,) = map(json.loads, lines)
    assert told["event"] == "forked"
    assert os.waitpid(told["session"], 0) == (told["session"], signal.SIGKILL)
