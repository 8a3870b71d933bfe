"""Program: mounts a file system whose server never answers, asks the checks about it, prints what they say.

    hung_mount.py PLACE                 three checks, in this process
    hung_mount.py PLACE COMMAND ...     any program, beside the mount; its exit code

To be run by root in a mount namespace of its own.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

from lifecycle.health import mounts
from lifecycle.health.check import CheckedNode, Level, check
from lifecycle.health.finding import Finding, ok
from lifecycle.health.runner import run_checks


@check("stuck", Level.QUICK, limit_s=0.5)
def stuck(node: CheckedNode) -> Finding:
    """Asks the dead mount itself."""
    os.statvfs(sys.argv[1])
    return ok("answered")


@check("after", Level.QUICK)
def after(node: CheckedNode) -> Finding:
    """Asks nothing."""
    return ok("well")


def main(place: Path, command: list[str]) -> None:
    server = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={server},rootmode=40000,user_id=0,group_id=0"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"hung", str(place).encode(), b"fuse.hung", 0, options.encode()):
        sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")
    if command:
        sys.exit(subprocess.run(command, check=False).returncode)
    mounts._ANSWER_S = 0.5
    for finding in run_checks([stuck, after, mounts.network_mounts], CheckedNode(), 30.0):
        print(finding.check, finding.status.name, finding.measured)


main(Path(sys.argv[1]), sys.argv[2:])
