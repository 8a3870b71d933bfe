"""Mounts: is what fstab promises mounted, does every network file system answer, is the root writable?"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from lifecycle.health.check import CannotObserve, CheckedNode, Level, NotHere, check
from lifecycle.health.finding import Finding, critical, ok
from slurm.command import CommandError

_NETWORK = re.compile(r"^(nfs4?|lustre|cifs|smb3|ceph|gpfs|beegfs|glusterfs|fuse(\..+)?|fuseblk)$")
_ANSWER_S = 3.0
_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A line of /proc/mounts or fstab."""

    source: str
    at: str
    kind: str
    options: tuple[str, ...]


@check("root_writable", Level.PROLOG, limit_s=1.0)
def root_writable(node: CheckedNode) -> Finding:
    """The root file system has not become read-only, as it does after a disk error."""
    roots = [mount for mount in read_mounts(node.read("/proc/mounts")) if mount.at == "/" and mount.kind != "rootfs"]
    if not roots:
        raise CannotObserve("/proc/mounts names no root")
    if "ro" in roots[-1].options:
        return critical(f"{roots[-1].source} read-only", "read-write", "dmesg says why; reboot, then replace the disk")
    return ok(f"{roots[-1].source} ({roots[-1].kind}) read-write", "read-write")


@check("network_mounts", Level.QUICK, limit_s=30.0)
def network_mounts(node: CheckedNode) -> Finding:
    """Every mounted network file system answers; those that users mount are theirs."""
    mounts = read_mounts(node.read("/proc/mounts"))
    found = [mount for mount in mounts if _NETWORK.match(mount.kind) and not _is_of_user(mount)]
    if not found:
        raise NotHere("no network file system is mounted")
    silent = []
    for mount in found:
        try:
            # stat -f asks the server. It is a separate program, because a dead mount blocks every process that uses it.
            node.command("stat", "-f", "-c", "%T", "--", mount.at, timeout_s=_ANSWER_S)
        except CommandError as error:
            silent.append(f"{mount.at} ({mount.kind}): {error.reason}")
    if silent:
        return critical(
            "; ".join(silent), f"an answer within {_ANSWER_S:g} s", "is the server up? umount -l, mount again, reboot"
        )
    return ok(", ".join(f"{mount.at} ({mount.kind})" for mount in found[:6]), f"an answer within {_ANSWER_S:g} s")


@check("fstab", Level.QUICK, limit_s=5.0)
def fstab(node: CheckedNode) -> Finding:
    """What fstab says is mounted."""
    try:
        promised = [mount for mount in read_mounts(node.read("/etc/fstab")) if _is_promise(mount)]
    except FileNotFoundError:
        raise NotHere("no /etc/fstab") from None
    if not promised:
        raise NotHere("fstab promises no mount")
    mounted = {mount.at for mount in read_mounts(node.read("/proc/mounts"))}
    places = {mount.at: mount.at.rstrip("/") or "/" for mount in promised}
    missing = [at for at, place in places.items() if not {place, _resolved(node, place)} & mounted]
    if missing:
        return critical(f"not mounted: {', '.join(missing)}", f"{len(promised)} mounts", f"mount {missing[0]}")
    return ok(f"{len(promised)} mounted", f"{len(promised)} mounts")


def read_mounts(text: str) -> list[Mount]:
    """The mounts in a text of fstab's form."""
    rows = [line.split() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return [
        Mount(source=row[0], at=_plain(row[1]), kind=row[2], options=tuple(row[3].split(",")))
        for row in rows
        if len(row) > 3
    ]


def _is_promise(mount: Mount) -> bool:
    return mount.at.startswith("/") and mount.kind != "swap" and not {"noauto", "nofail"} & set(mount.options)


def _is_of_user(mount: Mount) -> bool:
    """Whether a user has mounted it with FUSE. Its server may refuse root, or never answer."""
    return mount.kind.startswith("fuse") and any(
        option.startswith("user_id=") and option != "user_id=0" for option in mount.options
    )


def _resolved(node: CheckedNode, place: str) -> str:
    """The path without symbolic links, as in /proc/mounts; fstab may have links."""
    root = os.path.realpath(node.root)
    return "/" + os.path.relpath(os.path.realpath(node.path(place)), root).removeprefix(".").lstrip("/")


def _plain(name: str) -> str:
    """Decodes the octal numbers for spaces and similar characters."""
    return _ESCAPED.sub(lambda hit: chr(int(hit[1], 8)), name)
