"""Continues an interrupted `holdfast node provision` after a reboot, by a systemd unit.

`arm` writes the unit, with the run's own command line, before the first change. `disarm` removes it when all steps are
done. So a step that needs a reboot (a new kernel module) runs again after the reboot.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from lifecycle.provision.step import ProvisionedNode

UNIT_FILE = "/etc/systemd/system/holdfast-provision.service"
_WANTED = "/etc/systemd/system/multi-user.target.wants/holdfast-provision.service"
_UNIT = """\
[Unit]
Description=Continues an interrupted or failed `holdfast node provision`; a run that succeeds removes this unit
Wants=network-online.target
After=network-online.target

[Service]
Type=oneshot
WorkingDirectory={directory}
ExecStart={command}

[Install]
WantedBy=multi-user.target
"""


def arm(node: ProvisionedNode, arguments: Sequence[str], directory: Path) -> None:
    """Have systemd repeat this run at every boot until `disarm`. Does nothing where systemd is not running.

    An existing unit is kept: it belongs to an earlier run, which is not finished and removes the unit when it is.

    Args:
        node: the node.
        arguments: the arguments of `holdfast`.
        directory: the working directory, for relative paths in the arguments.

    Raises:
        OSError: the unit cannot be written.
    """
    if not node.has_systemd:
        return
    if not node.path(UNIT_FILE).exists():
        node.write(UNIT_FILE, _unit(arguments, directory))
    link = node.path(_WANTED)
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(UNIT_FILE)


def disarm(node: ProvisionedNode, arguments: Sequence[str], directory: Path, *, whole: bool) -> None:
    """Remove this run's unit after it has succeeded.

    Args:
        node: the node.
        arguments: the arguments of `holdfast`.
        directory: the working directory of this run.
        whole: whether the run had all steps. Then the unit of another run is removed too.
    """
    if not whole and node.text(UNIT_FILE) != _unit(arguments, directory):
        return
    node.path(_WANTED).unlink(missing_ok=True)
    node.path(UNIT_FILE).unlink(missing_ok=True)


def _unit(arguments: Sequence[str], directory: Path) -> str:
    command = " ".join(map(_quoted, (sys.executable, "-I", "-m", "launcher", *arguments)))
    return _UNIT.format(directory=str(directory).replace("%", "%%"), command=command)


def _quoted(word: str) -> str:
    """One argument, quoted for ExecStart= by the rules of systemd.service(5)."""
    for found, escaped in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%"), ("$", "$$"), ("\n", "\\n")):
        word = word.replace(found, escaped)
    return f'"{word}"'
