"""Under a supervisor, a preempted script stops where all ranks have agreed to, and not where SIGTERM finds each."""

from __future__ import annotations

import logging
import signal
import threading

log = logging.getLogger(__name__)


def leave_sigterm_to_the_stop() -> None:
    """Removes a SIGTERM handler of the script's own: it would act on each rank at another step."""
    handler = signal.getsignal(signal.SIGTERM)
    if callable(handler) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        name = getattr(handler, "__qualname__", repr(handler))
        log.warning("the SIGTERM handler %s is removed: all ranks stop at one step, by should_stop(step)", name)
