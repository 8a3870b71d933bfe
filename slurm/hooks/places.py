"""Where the hooks find and leave their files, and what the site set."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from slurm.errors import SlurmError

if TYPE_CHECKING:
    from os import PathLike
    from typing import Any

_MAX_SETTINGS_BYTES = 1 << 16


class SettingsError(SlurmError):
    """A settings file cannot be trusted or understood; the hook goes on with the defaults and says so."""


class HookSettings:
    """`/etc/holdfast/hooks.yaml`: flat `key: value` lines; every key is optional, and so is the file.

    Attributes:
        drain: whether a node that fails its checks is drained ("on"), or this is only logged ("off").
        keep_memory_s: how long the memory of an ended job stays for its requeue, seconds.
        flush_memory_s: how long the memory of an ended job may take to its lower tiers, where the job asked for that,
            seconds; 0 is never.
        verdict_age_s: how old a verdict may be to keep a job away, seconds.
        local_disk: mount point of the node's own disk; a directory for each user is made there. Empty: none.
        reboot: an admin's own program that reboots this node; empty: the init system's.
        max_drained: how many of the cluster's nodes the health hook may drain: a number, or a share such as "10%".
        check: level of `holdfast node check` that the health hook runs on an idle node; a busy one gets "prolog".
    """

    def __init__(
        self,
        *,
        drain: str = "off",
        keep_memory_s: float = 900.0,
        flush_memory_s: float = 900.0,
        verdict_age_s: float = 21600.0,
        local_disk: str = "",
        reboot: str = "",
        max_drained: str = "10%",
        check: str = "quick",
    ) -> None:
        self.drain = drain
        self.keep_memory_s = keep_memory_s
        self.flush_memory_s = flush_memory_s
        self.verdict_age_s = verdict_age_s
        self.local_disk = local_disk
        self.reboot = reboot
        self.max_drained = max_drained
        self.check = check


class Places:
    """The hooks' files."""

    def __init__(self, root: str | PathLike[str] = "/", memory: str | PathLike[str] = "/dev/shm") -> None:
        """
        Args:
            root: everything but the memory lies below it. "/", but on a test cluster, whose nodes share one disk.
            memory: where nodes keep training state in memory.
        """
        self.root = os.fspath(root)
        self._top = self.root.rstrip("/")
        self.memory = os.fspath(memory)

    @property
    def verdict(self) -> str:
        return f"{self._top}/var/lib/holdfast/verdict.json"

    @property
    def verdict_read(self) -> str:
        """What the hooks made of the verdict, where that is nothing against the node; goes with a reboot."""
        return f"{self._top}/run/holdfast/verdict-read"

    @property
    def draining(self) -> str:
        """The reason of a drain, while its hook has not looked whether it may stay."""
        return f"{self._top}/var/lib/holdfast/draining"

    @property
    def incidents(self) -> str:
        return f"{self._top}/var/lib/holdfast/incidents.jsonl"

    @property
    def ledger(self) -> str:
        """On a file system that a reboot empties, as it does the memory."""
        return f"{self._top}/run/holdfast/jobs"

    @property
    def tasks(self) -> str:
        """What TaskProlog prints, a file for each job of the node."""
        return f"{self._top}/run/holdfast/tasks"

    @property
    def log(self) -> str:
        return f"{self._top}/var/log/holdfast/hooks.log"

    @property
    def settings_file(self) -> str:
        return f"{self._top}/etc/holdfast/hooks.yaml"

    @property
    def checks_file(self) -> str:
        """The health checks' own settings, which `holdfast node check` reads."""
        return f"{self._top}/etc/holdfast/health.yaml"

    def settings(self) -> HookSettings:
        """What the site set.

        Raises:
            SettingsError: others than root could have written the file, or a line of it is not understood.
        """
        try:
            text = read_of_root(self.settings_file, _MAX_SETTINGS_BYTES)
        except FileNotFoundError:
            return HookSettings()
        known = {key: type(value) for key, value in vars(HookSettings()).items()}
        found: dict[str, Any] = {}
        for number, line in enumerate(text.splitlines(), 1):
            content = line.partition("#")[0].strip()
            if not content:
                continue
            key, _, value = (part.strip() for part in content.partition(":"))
            try:
                found[key] = known[key](value)
            except (KeyError, ValueError):
                raise SettingsError(
                    f"{self.settings_file}:{number}: got {content!r}, expected a line 'key: value' with one of "
                    + ", ".join(known)
                ) from None
        return HookSettings(**found)


def read_of_root(path: str | PathLike[str], max_bytes: int) -> str:
    """Text of a file that only root (or we) can have written.

    Raises:
        FileNotFoundError: there is none.
        SettingsError: it is a link, no regular file, somebody else's, or others can write it.
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
    """Leaves a file that is there whole or not at all; makes its directory if there is none."""
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
