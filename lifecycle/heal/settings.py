"""/etc/holdfast/heal.yaml: what healing may do. Every key is optional, and so is the file: then it only observes."""

from __future__ import annotations

import difflib
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from lifecycle.errors import UsageError
from lifecycle.yaml_file import MAX_FILE_BYTES, parse_yaml, settings_of
from slurm.errors import SlurmError
from slurm.hooks.drains import at_most
from slurm.hooks.places import SettingsError, read_of_root

SETTINGS_FILE = Path("/etc/holdfast/heal.yaml")

REBOOT_BY = ("slurm", "hyperpod")
REPLACE_BY = ("none", "hyperpod", "ec2", "command")
_OURS = (sys.executable, "-I", "-m", "launcher")  # -I: a job's working directory may be anybody's


@dataclass(frozen=True, kw_only=True)
class HealSettings:
    """What healing may do.

    Attributes:
        heal: "on", or "off": what would be done is printed, nothing is done.
        reboot: who reboots a node: Slurm's RebootProgram, or HyperPod.
        reboots: how often a node is rebooted for one trouble before it is replaced.
        replace: who replaces a node; "none": it stays drained, as a lemon.
        command: the admin's own way to replace one: argv, `{node}` stands for the node's name, `{address}` for its
            address.
        check: argv of the check that a node has to pass before it returns; run on it, as root, in a reservation.
        check_pairs: argv of the check between nodes, run in a job of the node and up to two idle neighbours, the
            node's name in HOLDFAST_CHECKED_NODE; empty: none.
        max_drained: how many nodes are healed at once: a number, or a share of all such as "10%".
        max_actions_per_hour: reboots and replacements of the whole cluster in any hour.
        flap_s: a node that fails again within so many seconds of its return is not rebooted again.
        reboot_again_s: a node that still answers so long after Slurm was to reboot it is told again, seconds.
        start_timeout_s: how long a rebooted or replaced node has until it registers.
        check_timeout_s: how long the check has, seconds, its wait for the node included.
        pairs_timeout_s: how long the check between nodes has, its wait for an idle neighbour included; the node then
            returns without.
    """

    heal: str = "off"
    reboot: str = "slurm"
    reboots: int = 1
    replace: str = "none"
    command: tuple[str, ...] = ()
    check: tuple[str, ...] = (*_OURS, "node", "check", "--level", "deep")
    check_pairs: tuple[str, ...] = (*_OURS, "node", "check", "--only", "allreduce_pairs")
    max_drained: str = "10%"
    max_actions_per_hour: int = 4
    flap_s: float = 3600.0
    reboot_again_s: float = 300.0
    start_timeout_s: float = 1800.0
    check_timeout_s: float = 3600.0
    pairs_timeout_s: float = 900.0

    def __post_init__(self) -> None:
        _one_of("heal", self.heal, ("on", "off"))
        _one_of("reboot", self.reboot, REBOOT_BY)
        _one_of("replace", self.replace, REPLACE_BY)
        if (self.replace == "command") != bool(self.command):
            raise UsageError("replace: command needs `command: [program, argument, ...]`, and nothing else does")
        if not self.check:
            raise UsageError("check: got none; a node returns only after a check")
        try:
            at_most(self.max_drained, 1)
        except SlurmError as error:
            raise UsageError(str(error)) from None

    @property
    def is_on(self) -> bool:
        return self.heal == "on"

    @classmethod
    def read(cls, path: Path) -> HealSettings:
        """The file's settings; those of nobody else than root are believed.

        Raises:
            UsageError: others could have written it, or something in it is not understood.
        """
        try:
            found = settings_of(parse_yaml(read_of_root(path, MAX_FILE_BYTES + 1).encode(), str(path)), str(path))
        except FileNotFoundError:
            return cls()
        except SettingsError as error:
            raise UsageError(f"{path}: {' '.join(str(error).split())}") from None
        try:
            return cls(**{key: _value(key, value) for key, value in found.items()})
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None


def _value(key: str, value: Any) -> Any:
    known: dict[str, Any] = {field.name: field.default for field in fields(HealSettings)}
    if key not in known:
        near = difflib.get_close_matches(key, known, n=1)
        raise UsageError(f"unknown key {key}; {f'did you mean {near[0]}?' if near else 'known: ' + ', '.join(known)}")
    default = known[key]
    if isinstance(default, tuple):
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise UsageError(f"{key}: got {value!r}, expected a list of words, the program first")
        return tuple(value)
    if isinstance(default, str):
        if isinstance(value, bool):
            return "on" if value else "off"
        return str(value)
    if isinstance(value, bool) or not isinstance(value, (int, type(default))) or not value >= 0:
        raise UsageError(f"{key}: got {value!r}, expected a number, 0 or more")
    return value


def _one_of(key: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"{key}: got {value}, expected {' | '.join(known)}")
