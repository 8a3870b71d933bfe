"""Where the hooks find and leave their files, and what the site set."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from slurm.errors import SlurmError

_MAX_SETTINGS_BYTES = 1 << 16


class SettingsError(SlurmError):
    """A settings file cannot be trusted or understood; the hook goes on with the defaults and says so."""


@dataclass(frozen=True, kw_only=True)
class Settings:
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

    drain: str = "off"
    keep_memory_s: float = 900.0
    flush_memory_s: float = 900.0
    verdict_age_s: float = 21600.0
    local_disk: str = ""
    reboot: str = ""
    max_drained: str = "10%"
    check: str = "quick"


@dataclass(frozen=True)
class Places:
    """The hooks' files.

    Attributes:
        root: everything but the memory lies below it. "/", but on a test cluster, whose nodes share one disk.
        memory: where nodes keep training state in memory.
    """

    root: Path = Path("/")
    memory: Path = field(default=Path("/dev/shm"))

    @property
    def verdict(self) -> Path:
        return self.root / "var/lib/holdfast/verdict.json"

    @property
    def incidents(self) -> Path:
        return self.root / "var/lib/holdfast/incidents.jsonl"

    @property
    def ledger(self) -> Path:
        """On a file system that a reboot empties, as it does the memory."""
        return self.root / "run/holdfast/jobs"

    @property
    def tasks(self) -> Path:
        """What TaskProlog prints, a file for each job of the node."""
        return self.root / "run/holdfast/tasks"

    @property
    def log(self) -> Path:
        return self.root / "var/log/holdfast/hooks.log"

    @property
    def settings_file(self) -> Path:
        return self.root / "etc/holdfast/hooks.yaml"

    @property
    def checks_file(self) -> Path:
        """The health checks' own settings, which `holdfast node check` reads."""
        return self.root / "etc/holdfast/health.yaml"

    def settings(self) -> Settings:
        """What the site set.

        Raises:
            SettingsError: others than root could have written the file, or a line of it is not understood.
        """
        try:
            text = read_of_root(self.settings_file, _MAX_SETTINGS_BYTES)
        except FileNotFoundError:
            return Settings()
        known: dict[str, type] = {item.name: type(item.default) for item in fields(Settings)}
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
        return Settings(**found)


def read_of_root(path: Path, max_bytes: int) -> str:
    """Text of a file that only root (or we) can have written.

    Raises:
        FileNotFoundError: there is none.
        SettingsError: it is a link, no regular file, somebody else's, or others can write it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        file = os.fdopen(descriptor, "rb")  # no directory either
    except FileNotFoundError:
        raise
    except OSError as error:
        raise SettingsError(f"{path}: cannot be opened: {error.strerror}") from None
    with file:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid not in (0, os.geteuid()) or facts.st_mode & 0o022:
            raise SettingsError(
                f"{path}: mode {facts.st_mode & 0o7777:o} of uid {facts.st_uid}, "
                "expected a file that only root can write"
            )
        return file.read(max_bytes).decode(errors="replace")
