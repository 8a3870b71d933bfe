"""Disks: free space, and the speed of those to which jobs write."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from pathlib import Path

from lifecycle.health.check import CheckedNode, Level, NotHere, check
from lifecycle.health.finding import Finding, critical, ok, warning
from lifecycle.health.mounts import read_mounts

_SYSTEM = ("/", "/tmp", "/var", "/var/log", "/var/spool/slurmd")
_OF_USERS = ("/tmp", "/var/tmp")  # a file system that a job can fill is not a fault of the node
_FULL, _NEARLY_FULL = 0.99, 0.95
_SAMPLE_BYTES = 256 << 20
_PIECE_BYTES = 4 << 20
_LOCAL_DISK = ("/dev/nvme", "/dev/md", "/dev/mapper/")
_NVME_MIN_MB_S = 500.0
_SHM_MIN_MB_S = 500.0


@check("disk_space", Level.PROLOG, limit_s=1.0)
def disk_space(node: CheckedNode) -> Finding:
    """The system's file systems have room, for bytes and for files."""
    worst, where = (False, 0.0), ""  # whether it is critical, part used
    of_users = {path.stat().st_dev for path in map(node.path, _OF_USERS) if path.is_dir()}
    for name in _SYSTEM:
        try:
            facts, device = os.statvfs(node.path(name)), node.path(name).stat().st_dev
        except FileNotFoundError:
            continue
        used_bytes = 1 - facts.f_bavail / facts.f_blocks if facts.f_blocks else 0.0
        used_files = 1 - facts.f_favail / facts.f_files if facts.f_files else 0.0
        for used, what in ((used_bytes, "bytes"), (used_files, "files")):
            if (found := (used >= _FULL and device not in of_users, used)) > worst:
                worst, where = found, f"{name}: {used:.0%} of {what} used"
    expected, advice = f"under {_NEARLY_FULL:.0%}", "remove old logs and what dead jobs left"
    is_unfit, used = worst
    if is_unfit:
        return critical(where, expected, advice)
    return warning(where, expected, advice) if used >= _NEARLY_FULL else ok(where, expected)


@check("shm_speed", Level.QUICK, limit_s=15.0, alone=True)
def shm_speed(node: CheckedNode) -> Finding:
    """Memory file system: written at memory's speed, as checkpoints are."""
    directory = node.path("/dev/shm")
    facts = os.statvfs(directory)
    room = facts.f_bavail * facts.f_frsize
    sample = min(_SAMPLE_BYTES, room // 4)
    if sample < _PIECE_BYTES:
        return warning(f"{room >> 20} MiB free", "room for a sample", "remove what dead jobs left in /dev/shm")
    speed = _write(directory, sample, sync=False)
    size = facts.f_blocks * facts.f_frsize >> 30
    measured, expected = f"{speed:.0f} MB/s, {size} GiB", f"at least {_SHM_MIN_MB_S:.0f} MB/s"
    if speed < _SHM_MIN_MB_S:
        return warning(measured, expected, "is the node swapping, or busy with another job?")
    return ok(measured, expected)


@check("nvme_speed", Level.QUICK, limit_s=30.0, alone=True)
def nvme_speed(node: CheckedNode) -> Finding:
    """The node's own disks for jobs: there, and written at a disk's speed, fsync included."""
    places = [node.settings.nvme] if node.settings.nvme else _local_disks(node)
    if not places:
        raise NotHere("no NVMe mount but the system's; `nvme:` in health.yaml names one")
    expected = f"at least {_NVME_MIN_MB_S:.0f} MB/s"
    told, slow = [], False
    for place in places:
        facts = os.statvfs(node.path(place))
        if facts.f_bavail * facts.f_frsize < 2 * _SAMPLE_BYTES:
            return warning(f"{place}: {facts.f_bavail * facts.f_frsize >> 20} MiB free", expected, "make room there")
        speed = _write(node.path(place), _SAMPLE_BYTES, sync=True)
        slow |= speed < _NVME_MIN_MB_S
        told.append(f"{place}: {speed:.0f} MB/s, {facts.f_blocks * facts.f_frsize >> 30} GiB")
    if slow:
        return warning("; ".join(told), expected, "is a job writing? nvme smart-log; replace the node")
    return ok("; ".join(told), expected)


@check("nvme_disks", Level.PROLOG, limit_s=1.0)
def nvme_disks(node: CheckedNode) -> Finding:
    """The instance type's local disks are there."""
    models = [path.read_text().strip() for path in node.path("/sys/block").glob("nvme*/device/model")]
    local = [model for model in models if "Instance Storage" in model]
    wanted = node.expected.nvme_disks if node.expected else None
    if wanted is None:
        raise NotHere("machine type unknown: nothing says how many local disks there should be")
    measured = f"{len(local)} of {len(models)} NVMe disks are the instance's own"
    if len(local) == wanted:
        return ok(measured, f"{wanted}")
    return critical(measured, f"{wanted}", "stop and start the instance, or replace the node")


def _local_disks(node: CheckedNode) -> list[str]:
    """The mount points of NVMe disks or arrays, without the system's own."""
    return [
        mount.at
        for mount in read_mounts(node.read("/proc/mounts"))
        if mount.source.startswith(_LOCAL_DISK)
        and mount.at not in ("/", "/usr", "/var", "/home")
        and not mount.at.startswith(("/boot", "/efi"))
        and "rw" in mount.options
    ]


def _write(directory: Path, nbytes: int, *, sync: bool) -> float:
    """The MB/s of a sequential write into a file that is already unlinked."""
    piece = memoryview(os.urandom(_PIECE_BYTES))
    path = directory / f".holdfast-check-{secrets.token_hex(4)}"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        path.unlink()  # so that a killed check leaves no file
        start_s = time.monotonic()
        for _ in range(nbytes // _PIECE_BYTES):
            os.write(descriptor, piece)
        if sync:
            os.fsync(descriptor)
        return nbytes / (time.monotonic() - start_s) / 1e6
    finally:
        with contextlib.suppress(OSError):
            os.close(descriptor)
