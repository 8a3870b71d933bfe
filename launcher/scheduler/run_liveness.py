"""`python -m launcher.scheduler.run_liveness RUN_ID`: exits with code 0 if the job of that run has certainly ended.

The ckpt agents of a new run call this program for the run whose claim they find (HOLDFAST_RUN_ENDED).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from ckpt.agent.process.launch import PYTHON
from launcher.errors import UsageError
from launcher.scheduler import scheduler_of
from launcher.scheduler.interface import RunLiveness


def command() -> list[str]:
    """The command line of this program, without the run's id."""
    return [*PYTHON, "-m", "launcher.scheduler.run_liveness"]


def liveness(run_id: str, env: Mapping[str, str]) -> RunLiveness:
    """Whether a run still goes on; nothing is certain about a run of an unknown scheduler."""
    try:
        return scheduler_of(run_id).liveness(run_id, env)
    except UsageError as error:
        return RunLiveness(has_ended=False, is_running=False, words=str(error))


def main() -> int:
    if len(sys.argv) != 2:
        print("launcher.scheduler.run_liveness: expected one run id", file=sys.stderr)
        return 2
    found = liveness(sys.argv[1], os.environ)
    print(found.words)
    return 0 if found.has_ended else 1


if __name__ == "__main__":
    sys.exit(main())
