"""/etc/holdfast/hooks.yaml: what Slurm's hooks may do on a node. Every key is optional, and so is the file."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from holdfast.settings.keys import key
from holdfast.settings.validation import validated
from holdfast.settings.yaml_file import parse_yaml, settings_of
from lifecycle.errors import NodeUsageError
from slurm.errors import SlurmError
from slurm.hooks.drains import at_most
from slurm.hooks.places import SettingsError, read_of_root
from slurm.hooks.settings import MAX_SOURCE_BYTES, HookSettings

_DEFAULT = HookSettings()
_PATH = {"pattern": r"^(|(/[^/\s]+)+)$", "expected": "an absolute path without spaces"}
_SECONDS = {"ge": 0, "allow_inf_nan": False, "unit": "s"}


@dataclass(frozen=True, kw_only=True)
class HookSite:
    """Settings of the hooks. `holdfast node provision --only hooks` compiles the file for them, on each node."""

    drain: Literal["on", "off"] = key(
        "Whether a node that fails its checks is drained; off only writes to hooks.log.", default="off", example="on"
    )
    keep_memory_s: float = key(
        "How long the memory of an ended job waits for its requeue.",
        default=_DEFAULT.keep_memory_s,
        **_SECONDS,
        example=600,
    )
    verdict_age_s: float = key(
        "A verdict older than this keeps no job away.", default=_DEFAULT.verdict_age_s, **_SECONDS, example=3600
    )
    local_disk: str = key(
        "Mount point of the node's own disk; each user gets a directory there.",
        default=_DEFAULT.local_disk,
        **_PATH,
        example="/local",
    )
    reboot: str = key(
        "The site's program that reboots this node.",
        default=_DEFAULT.reboot,
        derived="the init system's",
        **_PATH,
        example="/usr/local/sbin/power-cycle",
    )
    max_drained: str = key(
        "How many of the cluster's nodes hooks may drain, at least one: a number, or a share.",
        default=_DEFAULT.max_drained,
        example="3",
    )
    check: Literal["prolog", "quick"] = key(
        "Level of `holdfast node check` on an idle node; a busy one gets prolog.", default="quick", example="prolog"
    )

    def _limit_is_readable(self, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        try:
            at_most(self.max_drained, 1)
        except SlurmError as error:
            yield "max_drained", str(error).removeprefix("max_drained: ")

    rules = (_limit_is_readable,)

    @property
    def for_hooks(self) -> HookSettings:
        return HookSettings(**dataclasses.asdict(self))


def read_hook_settings(path: Path) -> tuple[HookSettings, str]:
    """The validated settings of the file, and its text; only root may be able to write the file.

    Raises:
        UsageError: others could have written the file, it cannot be read, or something in it is not valid.
    """
    try:
        text = read_of_root(path, MAX_SOURCE_BYTES + 1)
    except FileNotFoundError:
        text = ""
    except SettingsError as error:
        raise NodeUsageError(" ".join(str(error).split())) from None
    if len(text.encode()) > MAX_SOURCE_BYTES:
        raise NodeUsageError(f"{path}: got more than {MAX_SOURCE_BYTES} bytes, expected a smaller YAML file")
    given = settings_of(parse_yaml(text.encode(), str(path)), str(path))
    return validated(HookSite, given, source=str(path)).for_hooks, text
