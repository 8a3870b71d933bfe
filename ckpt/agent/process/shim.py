"""Started by mpirun or srun in place of an agent: makes the node's template fork the agent, and lives as long as it.

    python -I -S shim.py COMMAND...

The agent gets this process's environment, stdout, stderr, working directory, limits and CPUs. This process forwards
SIGTERM and exits when the agent does; the agent exits when this process is gone. So for the parent this process is the
agent. If no template responds, this process becomes the agent: it runs COMMAND.

Every agent starts through this file, so it is a single file with as few imports as possible: `socket` and `signal` take
longer to import than Python takes to start.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import os
import sys

SOCKET = "template.sock"  # in the memory directory
FORKED, READY, TERMINATE = b"f", b"r", b"t"
# a process in another container, for example, is not replaced by one of the template's
NAMESPACES = ("ipc", "mnt", "net", "pid", "user", "uts")
_ANSWER_S = 3.0
_PARENT_POLL_S = 1.0
_FD_BYTES = 4


def main() -> None:
    """Ends with the agent's exit code."""
    parent = os.getppid()
    if (connection := _forked()) is None:
        os.execvp(sys.argv[1], sys.argv[1:])
    # the agents' command line has ignored SIGTERM until now
    _signal.signal(_signal.SIGTERM, lambda number, frame: _tell(connection))
    for number in (_signal.SIGINT, _signal.SIGHUP):
        _signal.signal(number, _signal.SIG_IGN)
    connection.settimeout(_PARENT_POLL_S)
    code = None
    while True:
        try:
            answer = connection.recv(1)
        except TimeoutError:
            if os.getppid() != parent:
                os._exit(1)  # polled, because the parent may be only a thread of slurmstepd
            continue
        except OSError:
            answer = b""
        if not answer:
            break
        code = answer[0]
    if code is None:  # the agent was killed
        os.kill(os.getpid(), _signal.SIGKILL)
    os._exit(code or 0)


def _forked() -> _socket.socket | None:
    """The connection to the forked agent; None if the template does not provide one in time."""
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    directory = -1
    try:
        connection.settimeout(_ANSWER_S)
        connection.connect(os.path.join(os.environ["HOLDFAST_RAM_DIR"], SOCKET))
        credentials = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 3 * _FD_BYTES)
        if int.from_bytes(credentials[4:8], sys.byteorder) != os.getuid():
            return None
        # Sent only after the connection is accepted: in the queue of a stopped template, stdout would stay open for
        # ever.
        if connection.recv(1) != FORKED:
            return None
        directory = os.open(".", os.O_PATH | os.O_CLOEXEC)
        descriptors = b"".join(number.to_bytes(_FD_BYTES, sys.byteorder) for number in (1, 2, directory))
        request = _request()
        size = len(request).to_bytes(8, "big")
        connection.sendmsg([size], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, descriptors)])
        connection.sendall(request)
        if connection.recv(1) == READY:
            return connection
    except (OSError, KeyError):
        pass
    finally:
        if directory >= 0:
            os.close(directory)
    connection.close()
    return None


def _request() -> bytes:
    """This process's namespaces, followed by its environment."""
    own = [f"{name}={os.readlink(f'/proc/self/ns/{name}')}".encode() for name in NAMESPACES]
    return b"\0".join([*own, *(name + b"=" + value for name, value in os.environb.items())])


def _tell(connection: _socket.socket) -> None:
    try:
        connection.send(TERMINATE)
    except OSError:
        pass


if __name__ == "__main__":
    main()
