"""Ranks of a script with torchrun's variables, forked from a process that has its framework loaded once.

python forked.py RANKS SCRIPT MODULE...
"""

from __future__ import annotations

import importlib
import os
import runpy
import signal
import sys
from collections.abc import Sequence

from launcher.runner.port import free_port


def main(ranks: int, script: str, modules: Sequence[str]) -> int:
    """Runs the script on all ranks. A rank that fails ends the others. Returns the exit code."""
    for name in modules:
        module, _, part = name.rpartition(".")
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:  # a name in a package that loads its parts when they are used
            getattr(importlib.import_module(module), part)
    port = free_port()
    pids = []
    for rank in range(ranks):
        if (pid := os.fork()) == 0:
            os.environ.update(_variables(rank, ranks, port))
            sys.argv = [script]
            runpy.run_path(script, run_name="__main__")
            return 0
        pids.append(pid)
    codes = []
    while len(codes) < ranks:
        pid, status = os.wait()
        codes.append(os.waitstatus_to_exitcode(status))
        pids.remove(pid)
        if codes[-1]:
            for other in pids:
                os.kill(other, signal.SIGKILL)
    return next(filter(None, codes), 0)


def _variables(rank: int, ranks: int, port: int) -> dict[str, str]:
    own = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "ROLE_RANK": rank}
    common = {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "GROUP_WORLD_SIZE": 1, "ROLE_WORLD_SIZE": ranks}
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "bare", "OMP_NUM_THREADS": 1}
    return {name: str(value) for name, value in (own | common | place).items()}


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
