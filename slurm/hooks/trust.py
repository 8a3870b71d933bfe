"""Whether only root can change what Slurm runs as root: the files, and every directory and link on the way to them."""

from __future__ import annotations

import functools
import os
import pwd
import stat
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from slurm.errors import SlurmError

_MOST_LINKS = 40  # the kernel's own limit for one path


class TrustError(SlurmError):
    """A hook would run as root what others can change."""


def installation(interpreter: Path, package: Path) -> list[Path]:
    """What the hooks run: Python, its modules, this project's packages.

    Args:
        interpreter: the one that the scripts name.
        package: the directory of one of the project's packages; the others lie beside it.
    """
    modules = {Path(sysconfig.get_path(kind)) for kind in ("stdlib", "purelib", "platlib")}
    packages = [init.parent for init in package.parent.glob("*/__init__.py")]
    return [interpreter, *sorted(modules), *packages]


def check_trusted(*paths: Path) -> None:
    """Root will run what lies there: only root may be able to change it.

    Looks at each file, at all that is below a directory, and at every directory and link on the way from `/`. A
    directory that others may write is accepted where its sticky bit protects root's entries. Slurm's own user, which
    owns slurm.conf at many sites, may own directories.

    Raises:
        TrustError: others can change it, or it is not there.
    """
    seen: set[str] = set()
    for path in paths:
        try:
            real = _check_way(os.path.abspath(path), seen)
            for below in _below(real):
                _check(below, os.lstat(below))
                if os.path.islink(below):
                    _check_way(below, seen)
        except OSError as error:
            raise TrustError(f"{path}: {error.filename}: {error.strerror}, expected files of root") from None


def _check_way(path: str, seen: set[str]) -> str:
    """Checks every level of a path as the kernel walks it; returns where it leads."""
    here, names, links = "/", path.split("/")[::-1], 0
    _check(here, os.lstat(here))
    while names:
        name = names.pop()
        if name in ("", "."):
            continue
        if name == "..":
            here = os.path.dirname(here)
            continue
        level = os.path.join(here, name)
        if level in seen:
            here = level
            continue
        facts = os.lstat(level)
        _check(level, facts)
        if stat.S_ISLNK(facts.st_mode):
            links += 1
            if links > _MOST_LINKS:
                raise TrustError(f"{path}: more than {_MOST_LINKS} links, expected a file")
            target = os.readlink(level)
            names += target.split("/")[::-1]
            here = "/" if target.startswith("/") else here
        else:
            seen.add(level)
            here = level
    return here


def _below(directory: str) -> Iterator[str]:
    """Everything below a directory; links are not followed."""
    for above, directories, files in os.walk(directory, onerror=_raise):
        for name in (*directories, *files):
            yield os.path.join(above, name)


def _raise(error: OSError) -> None:
    if not isinstance(error, NotADirectoryError):
        raise error


def _check(path: str, facts: os.stat_result) -> None:
    is_directory = stat.S_ISDIR(facts.st_mode)
    may_own = (0, _slurm_user()) if is_directory else (0,)
    is_shared = facts.st_mode & 0o022 and not stat.S_ISLNK(facts.st_mode)
    if facts.st_uid not in may_own or (is_shared and not (is_directory and facts.st_mode & stat.S_ISVTX)):
        raise TrustError(
            f"{path}: mode {facts.st_mode & 0o7777:o} of uid {facts.st_uid}: others could change what Slurm runs as "
            "root; install holdfast where only root can write, for example in /opt/holdfast"
        )


@functools.cache
def _slurm_user() -> int:
    try:
        return pwd.getpwnam("slurm").pw_uid
    except KeyError:
        return 0
