"""A node made of recorded output and a directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pynvml

from lifecycle.health import gpu
from lifecycle.health.check import Check, CheckedNode
from slurm.command import CommandError, Result

RECORDED = Path(__file__).parent / "recorded"
ON_NVIDIA_SMI = tuple(one for one in vars(gpu).values() if isinstance(one, Check) and one is not gpu.gpu_devices)


class Answers:
    """Runs nothing: answers by the command line from recorded text; a program that is not in it is not installed."""

    def __init__(self, answers: Mapping[str, str | tuple[int, str]]) -> None:
        self._answers = answers
        self.asked: list[str] = []

    def __call__(self, argv: Sequence[str], *, check: bool = True, **_: Any) -> Result:
        line = " ".join(argv)
        self.asked.append(line)
        answer = self._answers.get(line)
        if answer is None:
            raise CommandError(_result(argv, None, ""), "could not be started (No such file or directory)")
        code, text = answer if isinstance(answer, tuple) else (0, answer)
        if check and code:
            raise CommandError(_result(argv, code, text), f"exit code {code}")
        return _result(argv, code, text)


def node_of(root: Path, answers: Mapping[str, str | tuple[int, str]] | None = None, **facts: Any) -> CheckedNode:
    """A node whose files lie below `root` and whose programs answer from `answers`."""
    return CheckedNode(root=root, run=Answers(answers or {}), **facts)


class Nvml:
    """NVML with one GPU of 18 links, whose error counters are given; its errors are the real ones."""

    def __init__(self, counters: Mapping[tuple[int, str], int] | None = None, links: int = 18, fails: int = 0) -> None:
        self._counters, self._links, self._fails = counters or {}, links, fails

    def __getattr__(self, name: str) -> Any:
        return getattr(pynvml, name)

    def nvmlInit(self) -> None:
        if self._fails:
            raise pynvml.NVMLError(self._fails)

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, gpu: int) -> int:
        return gpu

    def nvmlDeviceGetNvLinkErrorCounter(self, handle: int, link: int, counter: int) -> int:
        if link >= self._links:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return next(
            (n for (at, name), n in self._counters.items() if (at, getattr(pynvml, name)) == (link, counter)), 0
        )


def put(root: Path, name: str, text: str = "") -> Path:
    """Makes a file of the node."""
    path = root / name.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def plug(root: Path, address: str, vendor: str, device: str, class_: str) -> None:
    """Puts a device on the node's PCI bus."""
    for key, value in (("vendor", vendor), ("device", device), ("class", class_)):
        put(root, f"/sys/bus/pci/devices/{address}/{key}", value + "\n")


def plug_gpus(root: Path, count: int, *, driven: int | None = None) -> None:
    """GPUs on the bus, and how many of them the driver has."""
    for number in range(count):
        plug(root, f"0000:{number:02x}:00.0", "0x10de", "0x2330", "0x030200")
    for number in range(count if driven is None else driven):
        put(root, f"/proc/driver/nvidia/gpus/0000:{number:02x}:00.0/information")


def _result(argv: Sequence[str], code: int | None, text: str) -> Result:
    return Result(argv=tuple(argv), returncode=code, stdout=text, stderr="", seconds=0.01)
