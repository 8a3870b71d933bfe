"""The warm process that cannot be one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

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
