"""A run that a reboot or a loss of power cuts short goes on by itself: a unit of systemd stands until it has ended.

The unit is written before the first change, with the run's own command, and removed when every step is as it should
be. A step that asks for a reboot (a new kernel module) is so taken up again after it.
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
Description=Goes on with `holdfast node provision`, which was cut short or failed; removed by the run that succeeds
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
    """Has this run taken up again at every boot until `disarm`; nothing where systemd does not run.

    A unit that stands is left: an earlier run has more to do, and takes itself away when that is done.

    Args:
        node: the node.
        arguments: of `holdfast`.
        directory: what relative paths in them start from.

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
    """This run has ended well: takes its unit away, and where it was a whole run, another's too."""
    if not whole and node.text(UNIT_FILE) != _unit(arguments, directory):
        return
    node.path(_WANTED).unlink(missing_ok=True)
    node.path(UNIT_FILE).unlink(missing_ok=True)


def _unit(arguments: Sequence[str], directory: Path) -> str:
    command = " ".join(map(_quoted, (sys.executable, "-I", "-m", "launcher", *arguments)))
    return _UNIT.format(directory=str(directory).replace("%", "%%"), command=command)


def _quoted(word: str) -> str:
    """One argument, as systemd.service(5) reads it."""
    for found, escaped in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%"), ("$", "$$"), ("\n", "\\n")):
        word = word.replace(found, escaped)
    return f'"{word}"'
