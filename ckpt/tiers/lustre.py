"""Lustre's striping: a node's one large file per step is spread over several storage targets."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

from holdfast.base.programs import ProgramError, run

_MOUNTS = Path("/proc/self/mounts")
_TIMEOUT_S = 60.0

log = logging.getLogger(__name__)


def on_lustre(path: Path, mounts: Path = _MOUNTS) -> bool:
    """Whether a path is on a Lustre file system, from the list of mounts."""
    real = os.path.realpath(path)
    best, kind = "", ""
    for line in mounts.read_text(errors="surrogateescape").splitlines():
        _, point, fstype, *_ = line.split(" ")
        point = point.encode(errors="surrogateescape").decode("unicode_escape")  # the kernel writes a space as \040
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, fstype
    return kind == "lustre"


def set_stripe(directory: Path, stripe_count: int) -> None:
    """Set the layout that new files in a directory inherit.

    If `lfs` fails, this only logs it, because a layout matters only for speed. Files then have the default layout.
    """
    lfs = shutil.which("lfs")
    if lfs is None:
        return
    try:
        run([lfs, "setstripe", "--stripe-count", str(stripe_count), os.fspath(directory)], timeout_s=_TIMEOUT_S)
    except ProgramError as error:
        log.warning("%s: its layout is the default one: %s", directory, error)
