"""Makes Holdfast and its Python readable for the user of the jobs, wherever they are installed.

A job cannot run a checkout or an interpreter below a home directory with mode 0700, nor below /tmp, which every node
replaces by its own. So inside a private mount namespace these directories become empty ones with mode 0755, and both
are bind-mounted there at their own paths. Nothing changes outside that namespace.
"""

from __future__ import annotations

import os
import shlex
import stat
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
_HOLDS = (Path("/mnt"), Path("/media"), Path("/srv"))  # temporary mount point for the paths that stay visible


def needed_paths() -> tuple[Path, ...]:
    """The directories that a job needs to run this code: the project, the virtual environment and the interpreter."""
    found: list[Path] = []
    for path in sorted({PROJECT, *(Path(prefix).resolve() for prefix in (sys.prefix, sys.base_prefix))}):
        if not any(path.is_relative_to(above) for above in found):
            found.append(path)
    return tuple(found)


def barriers(paths: Iterable[Path], uid: int) -> tuple[Path, ...]:
    """For each path, the topmost directory on its way that a user may not enter; outermost first."""
    found = {next((d for d in reversed((path, *path.parents)) if not _may_pass(d, uid)), None) for path in paths}
    return tuple(sorted(directory for directory in found if directory is not None))


def view_script(replaced: Sequence[Path], paths: Sequence[Path]) -> str:
    """Shell commands that replace directories by empty ones and keep paths visible. Root runs them in a private
    mount namespace.

    Args:
        replaced: directories that become empty, outermost first.
        paths: paths that stay visible. Those outside all replaced directories need no command.
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
    """The argument list with which root runs a program in a mount namespace where a user can read this project."""
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
    """The directory's own mode, with read and search permission for everyone added."""
    return stat.S_IMODE(os.stat(directory).st_mode) | 0o555 if directory.is_dir() else 0o755
