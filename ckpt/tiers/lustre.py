"""Lustre's striping: a node's one large file per step is spread over several storage targets."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from pathlib import Path

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
        done = subprocess.run(
            [lfs, "setstripe", "--stripe-count", str(stripe_count), os.fspath(directory)],
            check=False, capture_output=True, text=True, timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        problem = done.stderr.strip() or f"exit code {done.returncode}" if done.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    if problem:
        log.warning("%s: lfs setstripe --stripe-count %d: %s", directory, stripe_count, problem)
