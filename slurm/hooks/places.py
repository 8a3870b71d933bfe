"""Paths of the hooks' files, and how root reads and writes them."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from slurm.errors import SlurmError

if TYPE_CHECKING:
    from os import PathLike


class SettingsError(SlurmError):
    """A file of the hooks cannot be trusted or parsed. The hook logs that and goes on without it."""


class Places:
    """The hooks' files."""

    def __init__(self, root: str | PathLike[str] = "/", memory: str | PathLike[str] = "/dev/shm") -> None:
        """
        Args:
            root: the root of all paths but the memory: "/", or a folder on a test cluster, whose nodes share one disk.
            memory: the directory in which nodes keep training state in memory.
        """
        self.root = os.fspath(root)
        self._top = self.root.rstrip("/")
        self.memory = os.fspath(memory)

    @property
    def verdict(self) -> str:
        return f"{self._top}/var/lib/holdfast/verdict.json"

    @property
    def verdict_read(self) -> str:
        """The cached result of a verdict without failures; removed by a reboot."""
        return f"{self._top}/run/holdfast/verdict-read"

    @property
    def draining(self) -> str:
        """The reason of a drain, until its hook has taken the second look."""
        return f"{self._top}/var/lib/holdfast/draining"

    @property
    def incidents(self) -> str:
        return f"{self._top}/var/lib/holdfast/incidents.jsonl"

    @property
    def ledger(self) -> str:
        """The ledger's directory, on a file system that a reboot empties, like the memory."""
        return f"{self._top}/run/holdfast/jobs"

    @property
    def tasks(self) -> str:
        """The output of TaskProlog, a file for each job of the node."""
        return f"{self._top}/run/holdfast/tasks"

    @property
    def log(self) -> str:
        return f"{self._top}/var/log/holdfast/hooks.log"

    @property
    def settings_file(self) -> str:
        return f"{self._top}/etc/holdfast/hooks.yaml"

    @property
    def compiled_settings(self) -> str:
        """The settings as hooks read them; see settings.py."""
        return f"{self._top}/var/lib/holdfast/hooks.settings"

    @property
    def checks_file(self) -> str:
        """The health checks' own settings, which `holdfast node check` reads."""
        return f"{self._top}/etc/holdfast/health.yaml"


def read_of_root(path: str | PathLike[str], max_bytes: int) -> str:
    """The text of a file that only root, or the user of this process, can have written.

    Raises:
        FileNotFoundError: it does not exist.
        SettingsError: it is a link, not a regular file, owned by another user, or writable by others.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise SettingsError(f"{path}: cannot be opened: {error.strerror}") from None
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise SettingsError(f"{path}: not a regular file, expected one that only root can write")
        if facts.st_uid not in (0, os.geteuid()) or facts.st_mode & 0o022:
            raise SettingsError(
                f"{path}: mode {facts.st_mode & 0o7777:o} of uid {facts.st_uid}, "
                "expected a file that only root can write"
            )
        return os.read(descriptor, max_bytes).decode(errors="replace")
    finally:
        os.close(descriptor)


def write_of_root(path: str, text: str, mode: int, directory_mode: int = 0o755) -> None:
    """Writes a file atomically; makes its directory if it is missing."""
    fresh = f"{path}.new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(fresh, flags, mode)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), directory_mode, exist_ok=True)
        descriptor = os.open(fresh, flags, mode)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
    os.replace(fresh, path)
