"""A port for the workers' next rendezvous."""

from __future__ import annotations

import contextlib
import random
import socket

# Below the range from which Linux takes ports for outgoing connections, so nothing takes one by chance before we do.
PORTS = range(20000, 32000)


def free_port() -> int:
    """One that nobody listens on now."""
    for port in random.sample(PORTS, 100):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("", port))
            return port
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]
