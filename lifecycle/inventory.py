"""The installed versions of torch, NCCL, aws-ofi-nccl, EFA and libfabric."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from lifecycle.versions import Installed
from slurm.command import CommandError, CommandRunner

_TORCH = (
    "import json, torch; v = torch.cuda.nccl.version() if torch.version.cuda else (); "
    "print(json.dumps([torch.__version__, '.'.join(map(str, v))]))"
)
_FI_INFO = ("/opt/amazon/efa/bin/fi_info", "fi_info")
_TORCH_S = 120.0  # a cold import from a shared file system


def installed(run: CommandRunner, python: str = sys.executable, root: Path = Path("/")) -> Installed:
    """The installed versions; "" for each part that is missing.

    Args:
        run: runs a program.
        python: the interpreter whose torch is examined; torch is loaded there, not here.
        root: "/"; another directory in tests.
    """
    torch, nccl = _torch(run, python)
    return Installed(
        torch=torch,
        torch_nccl=nccl,
        system_nccl=_loader(run, "libnccl.so.2"),
        plugin=_plugin(root),
        libfabric=_libfabric(run),
        efa=_efa(root),
    )


def _torch(run: CommandRunner, python: str) -> tuple[str, str]:
    import json

    try:
        version, nccl = json.loads(run((python, "-c", _TORCH), timeout_s=_TORCH_S).stdout)
    except (CommandError, ValueError):
        return "", ""
    return str(version), str(nccl)


def _loader(run: CommandRunner, library: str) -> str:
    """The version in the real name of the library that the loader would find; "" for none."""
    try:
        listing = run(("ldconfig", "-p")).stdout
    except CommandError:
        return ""
    for line in listing.splitlines():
        name, _, path = line.strip().partition(" => ")
        if name.split()[:1] == [library]:
            found = re.search(r"\.so\.(\d+\.\d+\.\d+)$", str(Path(path).resolve()))
            return found[1] if found else ""
    return ""


def _plugin(root: Path) -> str:
    """The plugin's version, a string in the library that NCCL_DEBUG=INFO logs ("Initializing aws-ofi-nccl 1.15.0")."""
    for library in sorted((root / "opt/amazon/ofi-nccl").glob("lib*/**/libnccl-net*.so")):
        found = re.search(rb"aws-ofi-nccl[ -](\d+\.\d+\.\d+)", library.read_bytes())
        if found:
            return found[1].decode()
    return ""


def _libfabric(run: CommandRunner) -> str:
    for program in _FI_INFO:
        try:
            said = run((program, "--version")).stdout
        except CommandError:
            continue
        found = re.search(r"^libfabric: (\S+)", said, re.MULTILINE)
        if found:
            return found[1]
    return ""


def _efa(root: Path) -> str:
    try:
        text = (root / "opt/amazon/efa_installed_packages").read_text(errors="replace")
    except OSError:
        return ""
    found = re.search(r"^# EFA installer version: (\S+)", text, re.MULTILINE)
    return found[1] if found else ""
