"""/etc/holdfast/heal.yaml: what healing may do. Every key is optional, and so is the file: then it only observes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from holdfast.base.environment import Variable
from holdfast.settings.keys import key
from holdfast.settings.validation import validated
from holdfast.settings.yaml_file import MAX_FILE_BYTES, parse_yaml, settings_of
from lifecycle.errors import NodeUsageError
from slurm.errors import SlurmError
from slurm.hooks.drains import at_most
from slurm.hooks.places import SettingsError, read_of_root

SETTINGS_FILE = Path("/etc/holdfast/heal.yaml")

_OURS = (sys.executable, "-I", "-m", "launcher")  # -I: imports nothing from the working directory


@dataclass(frozen=True, kw_only=True)
class HealSettings:
    """Settings of healing."""

    heal: Literal["on", "off"] = key(
        "Whether nodes are healed; off prints what would be done and does nothing.", default="off", example="on"
    )
    reboot: Literal["slurm", "hyperpod", "hyperpod_api"] = key(
        "Who reboots a node: Slurm's RebootProgram, or HyperPod, by the node's state or by its API.",
        default="slurm",
        example="hyperpod",
    )
    reboots: int = key(
        "How often a node is rebooted for one trouble before it is replaced.",
        default=1,
        ge=0,
        unit="reboots",
        example=2,
    )
    replace: Literal["none", "hyperpod", "hyperpod_api", "ec2", "command"] = key(
        "Who replaces a node; none leaves it drained, as a lemon.", default="none", example="ec2"
    )
    command: tuple[str, ...] = key(
        "The site's own way to replace a node, for `replace: command`: {node} stands for its name, {address} for its "
        "address.",
        default=(),
        expected="a word of the command, the program first",
        example="[/opt/bin/rma, '{node}']",
    )
    check: tuple[str, ...] = key(
        "The check that a node has to pass before it returns, run on it as root in a reservation.",
        default=(*_OURS, "node", "check", "--level", "deep"),
        derived="`holdfast node check --level deep`",
        expected="a word of the command, the program first",
        example="[/opt/bin/check, --all]",
    )
    check_pairs: tuple[str, ...] = key(
        "The check between nodes, run in a job of the node and up to two idle neighbours, with the node's name in "
        f"{Variable.CHECKED_NODE}; an empty list runs none.",
        default=(*_OURS, "node", "check", "--only", "allreduce_pairs"),
        derived="`holdfast node check --only allreduce_pairs`",
        expected="a word of the command, the program first",
        example="[]",
    )
    max_drained: str = key(
        "How many nodes are healed at once: a number, or a share of all nodes.", default="10%", example="3"
    )
    max_actions_per_hour: int = key(
        "Reboots and replacements in the whole cluster in any hour.", default=4, ge=0, unit="actions", example=8
    )
    flap_s: float = key(
        "A node that fails again within this time of its return is not rebooted again.",
        default=3600.0,
        ge=0,
        allow_inf_nan=False,
        unit="s",
        example=7200,
    )
    reboot_again_s: float = key(
        "A node that still answers this long after Slurm was to reboot it is rebooted again.",
        default=300.0,
        ge=0,
        allow_inf_nan=False,
        unit="s",
        example=600,
    )
    start_timeout_s: float = key(
        "How long a rebooted or replaced node has until it registers.",
        default=1800.0,
        ge=0,
        allow_inf_nan=False,
        unit="s",
        example=3600,
    )
    check_timeout_s: float = key(
        "How long the check has, its wait for the node included.",
        default=3600.0,
        ge=0,
        allow_inf_nan=False,
        unit="s",
        example=7200,
    )
    pairs_timeout_s: float = key(
        "How long the check between nodes has, its wait for an idle neighbour included; then the node returns without.",
        default=900.0,
        ge=0,
        allow_inf_nan=False,
        unit="s",
        example=1800,
    )
    textfile: str | None = key(
        "The directory of node_exporter's textfile collector on the controller; root's looks write metrics there.",
        default=None,
        pattern="^/.*$",
        expected="an absolute path",
        example="/var/lib/node_exporter/textfile",
    )

    def _command_is_whole(self, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        if (self.replace == "command") != bool(self.command):
            yield "replace", "command needs `command: [program, argument, ...]`, and nothing else does"

    def _has_a_check(self, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        if not self.check:
            yield "check", "got none; a node returns only after a check"

    def _limit_is_readable(self, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        try:
            at_most(self.max_drained, 1)
        except SlurmError as error:
            yield "max_drained", str(error).removeprefix("max_drained: ")

    rules = (_command_is_whole, _has_a_check, _limit_is_readable)

    @property
    def is_on(self) -> bool:
        return self.heal == "on"

    @classmethod
    def read(cls, path: Path) -> HealSettings:
        """The file's settings; only root may be able to write the file.

        Raises:
            UsageError: others could have written the file, it cannot be read, or something in it is not valid.
        """
        try:
            data = read_of_root(path, MAX_FILE_BYTES + 1).encode()
        except FileNotFoundError:
            return cls()
        except SettingsError as error:
            raise NodeUsageError(f"{path}: {' '.join(str(error).split())}") from None
        return validated(cls, settings_of(parse_yaml(data, str(path)), str(path)), source=str(path))
