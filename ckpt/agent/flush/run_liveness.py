"""Asks the launcher whether another run has certainly ended, with a command that the launcher gives."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Sequence

log = logging.getLogger(__name__)


def has_ended(command: Sequence[str], run_id: str, timeout_s: float) -> bool:
    """Runs the command with a run's id. True if it exits with 0; False if anything goes wrong.

    Args:
        command: its argv; empty if there is no such command.
        run_id: the run's id from its claim, which is not trusted.
    """
    if not command:
        return False
    try:
        done = subprocess.run(
            [*command, run_id], check=False, capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        log.warning("cannot tell whether run %s has ended: %s", run_id, error)
        return False
    log.info("run %s: %s", run_id, (done.stdout or done.stderr).strip()[-300:])
    return done.returncode == 0
