"""A free port for the workers' next rendezvous."""

from __future__ import annotations

import contextlib
import random
import socket

# below the range from which Linux chooses ports of outgoing connections, so that none takes it by chance
PORTS = range(20000, 32000)


def free_port() -> int:
    """A port on which no process listens."""
    for port in random.sample(PORTS, 100):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("", port))
            return port
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]
