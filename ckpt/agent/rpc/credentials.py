"""Who is at the other end of a Unix socket, as the kernel knows it."""

from __future__ import annotations

import socket
import struct

_UCRED = struct.Struct("3i")  # struct ucred: pid, uid, gid


def peer_of(stream: socket.socket) -> tuple[int, int]:
    """Pid and uid of the process that connected, or that listens; pid 0 is one of a pid namespace that is not ours."""
    pid, uid, _ = _UCRED.unpack(stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return pid, uid
