"""Checks that only root can change what Slurm runs as root: the files, and every directory and link to them."""

from __future__ import annotations

import os
import pwd
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from slurm.trust import Trust, TrustError

_ADVICE = (
    "others could change what Slurm runs as root; put holdfast where only root can write, for example in /opt/holdfast"
)


def installation(interpreter: Path, package: Path) -> list[Path]:
    """The paths that the hooks run: Python, its modules, this project's packages.

    Args:
        interpreter: the Python that the scripts name.
        package: the directory of one of the project's packages; the others are beside it.
    """
    modules = {Path(sysconfig.get_path(kind)) for kind in ("stdlib", "purelib", "platlib")}
    packages = [init.parent for init in package.parent.glob("*/__init__.py")]
    return [interpreter, *sorted(modules), *packages]


def check_trusted(*paths: Path) -> None:
    """Checks that only root can change these paths, because root will run them.

    It checks each file, everything below a directory, and every directory and link on the way from `/`. Slurm's own
    user, which owns slurm.conf at many sites, may own directories.

    Raises:
        TrustError: other users can change a path, or it does not exist.
    """
    trust = Trust(owners=(0,), directory_owners=(0, _slurm_user()), advice=_ADVICE)
    for path in paths:
        try:
            real = trust.check_way(os.path.abspath(path))
            for below in _below(real):
                trust.check(below, os.lstat(below))
                if os.path.islink(below):
                    trust.check_way(below)
        except OSError as error:
            raise TrustError(f"{path}: {error.filename}: {error.strerror}, expected files of root") from None


def _below(directory: str) -> Iterator[str]:
    """Everything below a directory; links are not followed."""
    for above, directories, files in os.walk(directory, onerror=_raise):
        for name in (*directories, *files):
            yield os.path.join(above, name)


def _raise(error: OSError) -> None:
    if not isinstance(error, NotADirectoryError):
        raise error


def _slurm_user() -> int:
    try:
        return pwd.getpwnam("slurm").pw_uid
    except KeyError:
        return 0
