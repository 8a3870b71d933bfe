"""Under a supervisor, all ranks of a preempted script stop at an agreed step, not where SIGTERM arrives at each."""

from __future__ import annotations

import logging
import signal
import threading

log = logging.getLogger(__name__)


def leave_sigterm_to_the_stop() -> None:
    """Removes the script's own SIGTERM handler, which would run on each rank at a different step."""
    handler = signal.getsignal(signal.SIGTERM)
    if callable(handler) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        name = getattr(handler, "__qualname__", repr(handler))
        log.warning("the SIGTERM handler %s is removed: all ranks stop at one step, by should_stop(step)", name)
