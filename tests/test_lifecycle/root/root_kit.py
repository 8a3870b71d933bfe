"""A fresh Debian in a directory, run in namespaces of its own as a node that can lose its power."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

from slurm.command import run
from tests import debian_root

REPOSITORY = Path(__file__).parents[3]

# What a machine has when it comes up: its own /proc, memory file systems, and the host's devices.
_BOOT = """
set -e
mount --make-rprivate /
mount -t proc proc "$0/proc"
mount --rbind /sys "$0/sys"
mount --rbind /dev "$0/dev"
mount -t tmpfs -o size=64M tmpfs "$0/dev/shm"
mount -t tmpfs tmpfs "$0/run"
exec chroot "$0" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin "${@:2}" bash -c "$1"
"""


class Machine:
    """A Debian root directory that can be switched on."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def install(cls, root: Path) -> Machine:
        """A minimal Debian 12, and this checkout in /src."""
        debian_root.install(root, "bookworm")
        tracked = run(
            ("git", "-C", str(REPOSITORY), "ls-files", "-z", "*.py", "*.yaml", "*.sh", "*.toml", "*.txt", "*.lock")
        ).stdout
        for name in [*filter(None, tracked.split("\0")), "README.md", "LICENSE"]:
            if not name.startswith("tests/"):
                (root / "src" / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(REPOSITORY / name, root / "src" / name)
        return cls(root)

    def power_on(self, script: str, log: Path) -> subprocess.Popen[bytes]:
        """Runs a script as the machine's first process; killing the returned process is a loss of power."""
        settings = ["SAGEMAKER_RESOURCE_CONFIG_PATH=/opt/ml/resource_config.json", *debian_root.environment(self.root)]
        with log.open("wb") as out:
            return subprocess.Popen(
                (*debian_root.APART, "bash", "-c", _BOOT, str(self.root), script, *settings),
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @staticmethod
    def cut_power(machine: subprocess.Popen[bytes]) -> None:
        """All of its processes at once, and with them its mounts."""
        os.kill(machine.pid, signal.SIGKILL)
        machine.wait(timeout=30)


def tar_gz(path: Path, files: dict[str, str]) -> str:
    """An archive of text files, all executable; returns its SHA-256."""
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(text.encode()), 0o755
            archive.addfile(entry, io.BytesIO(text.encode()))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def deb(path: Path, package: str, files: dict[str, str], work: Path) -> str:
    """A Debian package of executable text files; returns its SHA-256."""
    control = (
        f"Package: {package}\nVersion: 1\nArchitecture: all\nMaintainer: test <test@example.org>\nDescription: test\n"
    )
    for name, text in {"DEBIAN/control": control, **files}.items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(text)
        (work / name).chmod(0o644 if name.startswith("DEBIAN/") else 0o755)
    run(("dpkg-deb", "--root-owner-group", "--build", str(work), str(path)))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def loop_device(image: Path, size_bytes: int) -> str:
    """An empty disk."""
    with image.open("wb") as file:
        file.truncate(size_bytes)
    return run(("losetup", "--find", "--show", str(image))).stdout.strip()


def wait(condition: Callable[[], bool], deadline_s: float, what: str) -> None:
    """Until the condition holds."""
    import time

    end_s = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end_s:
            raise TimeoutError(f"{what}: not within {deadline_s:g} s")
        time.sleep(0.02)


def missing_programs(programs: Sequence[str]) -> list[str]:
    """Which of them are not installed here."""
    return [program for program in programs if shutil.which(program) is None]
