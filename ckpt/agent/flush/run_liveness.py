"""Whether another run has ended for certain, by the word of whoever started it: a command that the launcher names."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Sequence

log = logging.getLogger(__name__)


def has_ended(command: Sequence[str], run_id: str, timeout_s: float) -> bool:
    """Runs the command with a run's id; True when it exits with 0. Whatever goes wrong is no word of an end.

    Args:
        command: its argv; empty: there is nobody to ask.
        run_id: of the run asked about, as its claim says: anybody may have written it.
        timeout_s: how long it may take.
    """
    if not command:
        return False
    try:
        done = subprocess.run(
            [*command, run_id], check=False, capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        log.warning("whether run %s has ended is not known: %s", run_id, error)
        return False
    log.info("run %s: %s", run_id, (done.stdout or done.stderr).strip()[-300:])
    return done.returncode == 0
