"""The process at the other end of a Unix socket, according to the kernel."""

from __future__ import annotations

import socket
import struct

_UCRED = struct.Struct("3i")  # struct ucred: pid, uid, gid


def peer_of(stream: socket.socket) -> tuple[int, int]:
    """The pid and uid of the process that connected or listens. The pid is 0 for a process of another pid namespace."""
    pid, uid, _ = _UCRED.unpack(stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return pid, uid
