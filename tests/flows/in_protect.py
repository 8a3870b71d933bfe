"""Kills a checkpoint agent in the middle of its redundancy: `in_protect.py PID MEMORY_DIRECTORY`, on its node."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path


def main(pid: int, ram_dir: Path) -> None:
    while True:
        if is_half_made(ram_dir):
            os.kill(pid, signal.SIGSTOP)
            while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
                pass
            if is_half_made(ram_dir):
                os.kill(pid, signal.SIGKILL)
                return
            os.kill(pid, signal.SIGCONT)  # it was done with it


def is_half_made(ram_dir: Path) -> bool:
    """Whether a copy or parity has its bytes and no record yet."""
    paths = [*ram_dir.glob("copy-*.data"), *ram_dir.glob("parity-*.data")]
    return any(not path.with_suffix(".json").exists() for path in paths)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
