"""A node for tests of steps: a real root directory, and programs that change it the way the real ones do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lifecycle.provision.site import Site
from lifecycle.provision.step import ProvisionedNode
from slurm.command import CommandError, Result

LUSTRE_ADDRESS = "10.4.212.16"


class Killed(BaseException):
    """The process died here."""


class Programs:
    """Answers for the programs that steps run. Unknown ones end well and say nothing; `answers` has others.

    Attributes:
        ran: every argv, in order.
        packages: what dpkg says is installed, with its version.
        torn: those of them that dpkg was unpacking when it was killed, with dpkg's word for that.
        answers: first words of an argv -> (exit code, stdout).
        die_at: the run with this number (from 0) kills the process; None for none. It dies before or after the work.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.ran: list[tuple[str, ...]] = []
        self.packages: dict[str, str] = {}
        self.torn: dict[str, str] = {}
        self.answers: dict[tuple[str, ...], tuple[int, str]] = {}
        self.die_at: int | None = None
        self.die_after = False

    def __call__(self, argv: Sequence[str], *, cwd: str | Path | None = None, check: bool = True, **_: Any) -> Result:
        words = tuple(str(word) for word in argv)
        dies = self.die_at == len(self.ran)
        self.ran.append(words)
        if dies and not self.die_after:
            raise Killed
        code, out = self._answer(words, cwd)
        if dies:
            raise Killed
        result = Result(argv=words, returncode=code, stdout=out, stderr="", seconds=0.0)
        if check and code:
            raise CommandError(result, f"exit code {code}")
        return result

    def _answer(self, words: tuple[str, ...], cwd: str | Path | None) -> tuple[int, str]:
        for known, answer in self.answers.items():
            if words[: len(known)] == known:
                return answer
        if words[0] == "dpkg-query":
            if words[3].startswith("${db:Status-Eflag}"):
                return 0, "".join(f"{self.torn.get(name, 'ok')} {name}\n" for name in self.packages)
            rows = [f"{name} installed {self.packages[name]}" for name in words[4:] if name in self.packages]
            return 0, "\n".join(rows)
        if words[0] == "apt-get" and "install" in words:
            for package in words[words.index("install") + 1 :]:
                name, _, version = package.partition("=")
                self.torn.pop(name, None)
                self.packages[Path(name).name.split("_")[0]] = version or "1.0"
        if words[0] == "sysctl":
            value = (self._root / words[-1].lstrip("/")).read_text().split("=")[1]
            (self._root / "proc/sys/vm/nr_hugepages").write_text(value)
        if words[0] == "useradd":
            self._append("etc/passwd", f"{words[-1]}:x:{words[2]}:{words[4]}::{words[6]}:/bin/bash")
        if words[0] == "groupadd":
            self._append("etc/group", f"{words[-1]}:x:{words[2]}:")
        if words[0] == "df":
            return 0, f"size\n{(self._root / 'shm.size').read_text()}\n"
        if words[0] == "mount" and words[1] == "-o":
            (self._root / "shm.size").write_text(words[2].rpartition("size=")[2])
        elif words[0] == "mount":
            fstab = (self._root / "etc/fstab").read_text().splitlines()
            line = next(line for line in fstab if line.split()[1] == words[-1])
            self._mount(line)
        if words[0] == "stat" and (automounted := self._automounted(words[-1].removesuffix("/."))):
            self._mount(automounted)
        if words[:2] == ("getent", "ahosts"):
            return 0, "".join(f"{LUSTRE_ADDRESS}     {kind}\n" for kind in (f"STREAM {words[2]}", "DGRAM", "RAW"))
        return 0, ""

    def _mount(self, line: str) -> None:
        """Adds the kernel's row for a line of fstab: of Lustre it has the server's address, never its name."""
        source, at, kind = line.split()[:3]
        if kind == "lustre":
            source = f"{LUSTRE_ADDRESS}@{source.partition('@')[2]}"
        self._append("proc/mounts", f"{source} {at} {kind} rw 0 0")

    def _automounted(self, at: str) -> str:
        """The line of fstab that systemd mounts at the first use of the mount point; "" for none."""
        mounts = [line.split() for line in (self._root / "proc/mounts").read_text().splitlines()]
        if [kind for _, place, kind, *_ in mounts if place == at] != ["autofs"]:
            return ""
        fstab = (self._root / "etc/fstab").read_text().splitlines()
        return next(line for line in fstab if line.split()[1] == at)

    def _append(self, name: str, line: str) -> None:
        path = self._root / name
        path.write_text(path.read_text() + line + "\n")


def bare(root: Path) -> Path:
    """A root directory with what a fresh machine has: /proc, /etc; memory of 1 GiB."""
    files = {
        "etc/passwd": "root:x:0:0:root:/root:/bin/bash\n",
        "etc/group": "root:x:0:\n",
        "etc/fstab": "UUID=1 / ext4 defaults 0 1\n",
        "etc/os-release": 'PRETTY_NAME="Debian GNU/Linux 12"\n',
        "proc/mounts": "/dev/root / ext4 rw 0 0\ntmpfs /dev/shm tmpfs rw 0 0\n",
        "proc/meminfo": "MemTotal:        1048576 kB\n",
        "proc/sys/vm/nr_hugepages": "0\n",
        "usr/lib/systemd/systemd-logind": "",
        "shm.size": str(512 << 20),
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def no_fetch(artifact: str, version: str = "", sha256: str = "") -> Path:
    """For steps that must not fetch."""
    raise AssertionError(f"fetched {artifact}")


def node_of(root: Path, programs: Programs | None = None, **site: object) -> ProvisionedNode:
    """A machine (no container) with these keys of node.yaml."""
    described = Site.from_mapping({"container": False, **site}, "node.yaml")
    return ProvisionedNode(root=root, site=described, run=programs or Programs(root), fetch=no_fetch)


def snapshot(root: Path) -> dict[str, tuple[str, int]]:
    """Every file's text and time of change."""
    files = [path for path in root.rglob("*") if path.is_file() and "run/holdfast" not in str(path)]
    return {str(path.relative_to(root)): (path.read_text(), path.stat().st_mtime_ns) for path in files}
