"""Checks that only trusted users can change a file: its owner and mode, and those of every directory and link to it."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from dataclasses import dataclass, field

from slurm.errors import SlurmError

_MOST_LINKS = 40  # the kernel's own limit for one path


class TrustError(SlurmError):
    """A user who is not trusted could change the path."""


@dataclass(frozen=True, kw_only=True)
class Trust:
    """The trusted users and groups.

    Attributes:
        owners: users who may own files and links.
        directory_owners: users who may own directories.
        groups: groups that may write.
        advice: the next step in the error message.
    """

    owners: Collection[int]
    directory_owners: Collection[int]
    groups: Collection[int] = ()
    advice: str
    _seen: set[str] = field(default_factory=set)

    def check_way(self, path: str) -> str:
        """Checks every level of a path as the kernel walks it. Returns the resolved path.

        A directory that others may write is accepted if it has the sticky bit.

        Raises:
            TrustError: others can change it.
            OSError: it does not exist.
        """
        here, names, links = "/", path.split("/")[::-1], 0
        self.check("/", os.lstat("/"))
        while names:
            name = names.pop()
            if name in ("", "."):
                continue
            if name == "..":
                here = os.path.dirname(here)
                continue
            level = os.path.join(here, name)
            if level in self._seen:
                here = level
                continue
            facts = os.lstat(level)
            self.check(level, facts)
            if stat.S_ISLNK(facts.st_mode):
                links += 1
                if links > _MOST_LINKS:
                    raise TrustError(f"{path}: more than {_MOST_LINKS} links, expected a file")
                target = os.readlink(level)
                names += target.split("/")[::-1]
                here = "/" if target.startswith("/") else here
            else:
                self._seen.add(level)
                here = level
        return here

    def check(self, path: str, facts: os.stat_result) -> None:
        """Checks one file, directory or link.

        Raises:
            TrustError: others can change it.
        """
        is_directory = stat.S_ISDIR(facts.st_mode)
        by_group = facts.st_mode & 0o020 and facts.st_gid not in self.groups
        is_shared = (facts.st_mode & 0o002 or by_group) and not stat.S_ISLNK(facts.st_mode)
        owners = self.directory_owners if is_directory else self.owners
        if facts.st_uid not in owners or (is_shared and not (is_directory and facts.st_mode & stat.S_ISVTX)):
            raise TrustError(
                f"{path}: mode {facts.st_mode & 0o7777:o} of uid {facts.st_uid}, group {facts.st_gid}: {self.advice}"
            )
