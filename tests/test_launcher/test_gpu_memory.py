"""Memory on GPUs that ended workers still hold: what a runner waits for, until when, and what it says then.

The numbers of the GPUs come from recorded reports of nvidia-smi, NVML's errors from its own library.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pynvml
import pytest

from launcher.runner import attempt as attempt_module
from launcher.runner import gpu_memory
from launcher.runner.attempt import NodeAttempt
from launcher.runner.config import RunnerConfig
from launcher.runner.gpu_memory import GpuMemory

RECORDED = Path(__file__).parents[1] / "test_lifecycle" / "recorded"
GIB = 1 << 30


class Nvml:
    """NVML with the GPUs of a report.

    Attributes:
        more: what workers use on each GPU beside.
        pids: processes on each GPU; alive: those that have not ended.
        fails: NVML's error, if it has one.
    """

    def __init__(self, report: str = "nvidia-smi-h200.xml") -> None:
        gpus = ElementTree.parse(RECORDED / report).findall("gpu")
        self._used = [int(gpu.findtext("fb_memory_usage/used", "").split()[0]) << 20 for gpu in gpus]
        self._uuids = [gpu.findtext("uuid", "") for gpu in gpus]
        self.names = [str(number) for number in range(len(gpus))]
        self.more = dict.fromkeys(range(len(gpus)), 0)
        self.pids: dict[int, list[int]] = {}
        self.alive: set[int] = set()
        self.fails = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(pynvml, name)

    def nvmlInit(self) -> None:
        if self.fails:
            raise pynvml.NVMLError(self.fails)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        return self._uuids.index(uuid)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        if self.fails:
            raise pynvml.NVMLError(self.fails)
        return SimpleNamespace(used=self._used[handle] + self.more[handle])

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        return [SimpleNamespace(pid=pid) for pid in self.pids.get(handle, [])]


def asked(nvml: Nvml, names: list[str] | None = None) -> str:
    """What is held after workers that used memory, as `nvml` has it now, have ended."""
    now, nvml.more = nvml.more, dict.fromkeys(nvml.more, 0)
    memory = GpuMemory(names or nvml.names, lambda: nvml, lambda pid: pid in nvml.alive)

    async def ask() -> str:
        await memory.learn()
        nvml.more = now
        return await memory.held(names or nvml.names)

    return asyncio.run(ask())


def test_nothing_is_held_where_the_gpus_are_as_before() -> None:
    assert asked(Nvml()) == ""


def test_what_the_driver_needs_for_itself_is_not_held() -> None:
    nvml = Nvml()
    nvml.more[0] = 300 << 20
    assert asked(nvml) == ""


def test_held_memory_is_named_with_its_gpu_and_its_processes() -> None:
    nvml = Nvml()
    nvml.more[0], nvml.pids[0] = 61 * GIB, [1712, 1711]
    assert asked(nvml) == f"GPU 0: {61 * 1024} MiB of processes 1711, 1712"
    nvml.pids[0] = []
    assert asked(nvml) == f"GPU 0: {61 * 1024} MiB", "its process is gone, or in another PID namespace"


def test_memory_of_a_process_that_lives_is_somebody_elses() -> None:
    nvml = Nvml()
    nvml.more[0], nvml.pids[0], nvml.alive = 61 * GIB, [1711], {1711}
    assert asked(nvml) == ""


def test_a_gpu_may_be_named_by_its_uuid() -> None:
    nvml = Nvml()
    nvml.more[0] = GIB
    uuid = nvml._uuids[0]
    assert asked(nvml, [uuid]) == f"GPU {uuid}: 1024 MiB"


def test_the_least_use_counts_even_if_it_is_seen_later() -> None:
    """A requeue may start the runner while processes of the start before still hold memory."""
    nvml = Nvml()
    memory = GpuMemory(nvml.names, lambda: nvml)

    async def ask() -> list[str]:
        nvml.more[0] = 70 * GIB
        await memory.learn()
        nvml.more[0] = 0
        found = [await memory.held(["0"])]
        nvml.more[0] = 2 * GIB
        return [*found, await memory.held(["0"])]

    assert asyncio.run(ask()) == ["", "GPU 0: 2048 MiB"]


@pytest.mark.parametrize("error", ["NVML_ERROR_DRIVER_NOT_LOADED", "NVML_ERROR_GPU_IS_LOST"])
def test_where_nvml_fails_nothing_is_held_and_this_is_said_once(error: str, caplog: pytest.LogCaptureFixture) -> None:
    nvml = Nvml()
    nvml.fails = getattr(pynvml, error)
    assert asked(nvml) == ""
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "memory that ended workers hold on this node's GPUs is not seen"
    ]


def test_an_nvml_that_never_answers_is_not_waited_for_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gpu_memory, "NVML_S", 0.05)
    release = threading.Event()

    class Hangs(Nvml):
        def nvmlInit(self) -> None:
            release.wait(60)

    assert asked(Hangs()) == ""
    release.set()
    assert caplog.text.count("no answer within 0.05 s") == 1


class Frees:
    """GPUs whose memory is freed after so many looks."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    async def held(self, names: Any) -> str:
        self.looks -= 1
        return "GPU 0: 61440 MiB of process 1711" if self.looks >= 0 else ""


def killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, memory: Frees | None, limit_s: float) -> list[Any]:
    """What a runner says when its attempt is killed."""
    monkeypatch.setattr(attempt_module, "LINGER_S", limit_s)
    monkeypatch.setattr(attempt_module, "_GPU_MEMORY_POLL_S", 0.0)
    config = RunnerConfig(
        run_id="run", node="n", ram_dir=tmp_path, job_dir=tmp_path, host="localhost", port=1, parent_pid=None
    )
    sent: list[Any] = []

    async def kill() -> None:
        attempt = NodeAttempt(config, sent.append, lambda: None)
        attempt._gpu_memory, attempt.number = memory, 3  # type: ignore[assignment]
        await attempt.kill(3)

    asyncio.run(kill())
    return sent


def test_the_end_of_workers_is_confirmed_once_their_memory_is_free(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    waits, done = killed(monkeypatch, tmp_path, Frees(3), 60.0)
    assert waits == {"op": "lingering", "attempt": 3, "held": "GPU 0: 61440 MiB of process 1711", "wait_s": 60.0}
    assert (done["op"], done["held"]) == ("killed", "")


def test_memory_that_is_never_freed_is_waited_for_until_a_deadline(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (done,) = killed(monkeypatch, tmp_path, Frees(10**9), 0.0)
    assert (done["op"], done["held"]) == ("killed", "GPU 0: 61440 MiB of process 1711")


def test_without_gpus_nothing_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (done,) = killed(monkeypatch, tmp_path, None, 60.0)
    assert (done["op"], done["held"]) == ("killed", "")
