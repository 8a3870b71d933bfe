"""The site's settings of the hooks.

People write `/etc/holdfast/hooks.yaml`. `holdfast node provision --only hooks` validates it (lifecycle has the model)
and compiles it to a file that only it writes, because hooks run before every job with the standard library alone, which
has no YAML. The compiled file is one line for each setting, a separator, and the text of hooks.yaml, by which hooks
notice that hooks.yaml has changed since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slurm.hooks.places import Places, SettingsError, read_of_root, write_of_root

if TYPE_CHECKING:
    from typing import Any

MAX_SOURCE_BYTES = 1 << 16
"""Size limit of hooks.yaml."""

_SEPARATOR = "\n--- compiled from:\n"
_COMPILE = "run `holdfast node provision --only hooks` on this node"


class HookSettings:
    """The settings, with their defaults.

    Attributes:
        drain: whether a node that fails its checks is drained ("on"), or this is only logged ("off").
        keep_memory_s: time for which the memory of an ended job waits for its requeue, seconds.
        verdict_age_s: an older verdict keeps no job away, seconds.
        local_disk: mount point of the node's own disk; a directory for each user is made there. Empty: none.
        reboot: the administrator's program that reboots this node; empty: the init system's.
        max_drained: how many of the cluster's nodes hooks may drain: a number, or a share such as "10%".
        check: level of `holdfast node check` that the health hook runs on an idle node; a busy one gets "prolog".
    """

    def __init__(
        self,
        *,
        drain: str = "off",
        keep_memory_s: float = 900.0,
        verdict_age_s: float = 21600.0,
        local_disk: str = "",
        reboot: str = "",
        max_drained: str = "10%",
        check: str = "quick",
    ) -> None:
        self.drain = drain
        self.keep_memory_s = keep_memory_s
        self.verdict_age_s = verdict_age_s
        self.local_disk = local_disk
        self.reboot = reboot
        self.max_drained = max_drained
        self.check = check


def read_settings(places: Places) -> tuple[HookSettings, str]:
    """The compiled settings, and "" or what is wrong: then they are the last compiled ones, or the defaults."""
    try:
        source = _source(places)
        compiled = read_of_root(places.compiled_settings, 2 * MAX_SOURCE_BYTES)
        settings, known = _parsed(compiled, places)
    except FileNotFoundError:
        return (
            HookSettings(),
            f"{places.settings_file} is not compiled: the defaults apply; {_COMPILE}" if source else "",
        )
    except SettingsError as error:
        return HookSettings(), f"{error}; the defaults apply"
    if source != known:
        return (
            settings,
            f"{places.settings_file} was changed after it was compiled: the older settings apply; {_COMPILE}",
        )
    return settings, ""


def write_settings(places: Places, settings: HookSettings, source: str) -> None:
    """Writes the compiled file.

    Args:
        places: paths of the hooks' files.
        settings: the settings, validated.
        source: the text of hooks.yaml.
    """
    write_of_root(places.compiled_settings, compiled_text(settings, source), 0o644)


def compiled_text(settings: HookSettings, source: str) -> str:
    """The text of the compiled file."""
    lines = (f"{key} {value}" for key, value in vars(settings).items())
    return "\n".join(lines) + _SEPARATOR + source


def _source(places: Places) -> str:
    """The text of hooks.yaml; "" if it does not exist."""
    try:
        return read_of_root(places.settings_file, MAX_SOURCE_BYTES + 1)
    except FileNotFoundError:
        return ""


def _parsed(compiled: str, places: Places) -> tuple[HookSettings, str]:
    head, separator, source = compiled.partition(_SEPARATOR)
    known = {key: type(value) for key, value in vars(HookSettings()).items()}
    found: dict[str, Any] = {}
    try:
        for line in head.splitlines():
            key, _, value = line.partition(" ")
            found[key] = known[key](value)
    except (KeyError, ValueError):
        separator = ""
    if not separator or found.keys() != known.keys():
        raise SettingsError(f"{places.compiled_settings}: not a compiled file of this version; {_COMPILE}")
    return HookSettings(**found), source
