"""Directories of torch's C++ extensions (torch.utils.cpp_extension, DeepSpeed's operators), and the locks in them.

torch builds an extension at its first use, under a lock: a file that exists (torch.utils.file_baton). A worker that is
killed leaves the file, and every later worker waits for it without a limit. So the workers of a node have a directory
of their own. When an attempt begins, all workers of earlier ones have ended, and no lock there is held.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

VARIABLE = "TORCH_EXTENSIONS_DIR"

_LOCK = "lock"


def own_directory(environment: Mapping[str, str]) -> Path | None:
    """Choose the node's directory, on its disk. It is made when something is built, and nobody can guess its name.

    Args:
        environment: that of the workers.

    Returns:
        The directory. None if the job names one itself, or if programs cannot be loaded from the node's TMPDIR.
    """
    if VARIABLE in environment or os.statvfs(tempfile.gettempdir()).f_flag & os.ST_NOEXEC:
        return None
    return Path(tempfile.gettempdir()) / f"holdfast-extensions-{secrets.token_hex(16)}"


def prepare(directory: Path, build: str) -> None:
    """Remove the locks of earlier attempts. At first, copy what the user has built before, if anything.

    Args:
        directory: the node's own directory.
        build: the name of this Python's and this torch's folder in torch's default directory.
    """
    for lock in locks(directory):
        lock.unlink(missing_ok=True)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch_extensions" / build
    if not directory.exists() and cache.is_dir():
        shutil.copytree(cache, directory, ignore=shutil.ignore_patterns(_LOCK))


def locks(directory: Path) -> Iterator[Path]:
    """The locks in a directory of extensions."""
    return (path / _LOCK for path in directory.glob("*") if (path / _LOCK).exists())


def build_of(version: object) -> str:
    """The name of the folder in torch's default directory.

    Args:
        version: torch.version.
    """
    kinds = {"rocm": getattr(version, "hip", None), "cu": getattr(version, "cuda", None)}
    kind = next((f"{name}{number.replace('.', '')}" for name, number in kinds.items() if number), "cpu")
    return f"py{sys.version_info.major}{sys.version_info.minor}{sys.abiflags}_{kind}"
