"""This project and its Python, visible to the ordinary user, wherever they lie.

A checkout or an interpreter below somebody's 0700 home, or below the /tmp that every node replaces by its own, could
not be run by a job. Inside a private mount namespace both are bound again at their own paths, below empty directories
that all may pass. Nothing changes outside that namespace.
"""

from __future__ import annotations

import os
import shlex
import stat
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
_HOLDS = (Path("/mnt"), Path("/media"), Path("/srv"))  # empty on most machines: what is to stay visible waits in one


def needed_paths() -> tuple[Path, ...]:
    """What a job needs in order to run this code: the project, its environment, the interpreter's own files."""
    found: list[Path] = []
    for path in sorted({PROJECT, *(Path(prefix).resolve() for prefix in (sys.prefix, sys.base_prefix))}):
        if not any(path.is_relative_to(above) for above in found):
            found.append(path)
    return tuple(found)


def barriers(paths: Iterable[Path], uid: int) -> tuple[Path, ...]:
    """The topmost directories above the paths that a user may not pass; outermost first."""
    found = {next((d for d in reversed((path, *path.parents)) if not _may_pass(d, uid)), None) for path in paths}
    return tuple(sorted(directory for directory in found if directory is not None))


def view_script(replaced: Sequence[Path], paths: Sequence[Path]) -> str:
    """Shell commands, for root in a private mount namespace, that replace directories and keep paths visible.

    Args:
        replaced: directories that become empty, outermost first.
        paths: what must be there at its own path afterwards; those below no replaced directory are left alone.
    """
    hidden = [path for path in paths if any(path.is_relative_to(directory) for directory in replaced)]
    hold = shlex.quote(str(next(d for d in _HOLDS if d.is_dir() and not any(p.is_relative_to(d) for p in paths))))
    script = ["set -e", "umask 022", f"mount -t tmpfs tmpfs {hold}"]  # nothing is made on the host's own file systems
    for index, path in enumerate(hidden):
        script += [f"mkdir {hold}/{index}", f"mount --bind {shlex.quote(str(path))} {hold}/{index}"]
    for directory in replaced:
        script.append(f"mkdir -p {shlex.quote(str(directory))}")
        script.append(f"mount -t tmpfs -o mode={_mode(directory):o} tmpfs {shlex.quote(str(directory))}")
    for index, path in enumerate(hidden):
        script += [f"mkdir -p {shlex.quote(str(path))}", f"mount --bind {hold}/{index} {shlex.quote(str(path))}"]
    return "\n".join([*script, f"umount --lazy {hold}"])


def in_view(argv: Sequence[str], uid: int) -> tuple[str, ...]:
    """The argument list by which root runs a program where a user can reach this project."""
    paths = needed_paths()
    blocked = barriers(paths, uid)
    if not blocked:
        return tuple(argv)
    script = view_script(blocked, paths) + '\nexec "$@"'
    return ("unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", *argv)


def _may_pass(directory: Path, uid: int) -> bool:
    """Whether a user without supplementary groups may enter a directory."""
    facts = directory.stat()
    return bool(facts.st_mode & (stat.S_IXUSR if facts.st_uid == uid else stat.S_IXOTH))


def _mode(directory: Path) -> int:
    """Anyone may write where anyone could; anyone may pass all others."""
    return stat.S_IMODE(os.stat(directory).st_mode) | 0o555 if directory.is_dir() else 0o755
