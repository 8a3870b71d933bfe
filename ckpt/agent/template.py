"""`python -m ckpt.agent.template RUNNER_PID`: has loaded the modules of an agent, and forks agents at once.

There is one on each node, a child of the node's runner, with which it ends. It listens in the memory directory (0700)
for the shims that mpirun or srun starts (shim.py). MPI is loaded, but not initialised. The template has no threads and
reads nothing from a connection. The forked process reads, so no shim can block the next one.

An agent outlives its template. It ends with its shim.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from ckpt.agent.__main__ import main as run_agent
from ckpt.agent.process.lifetime import register
from ckpt.agent.process.shim import FORKED, NAMESPACES, READY, SOCKET, TERMINATE
from ckpt.agent.rpc.credentials import peer_of
from ckpt.agent.rpc.transport import load_mpi
from ckpt.redundancy.gf256 import prepare
from holdfast.base.environment import Variable

_LOOK_S = 5.0
_REQUEST_S = 5.0
_MAX_REQUEST_BYTES = 8 << 20  # more than Linux allows for a program's environment
_DESCRIPTORS = 3  # stdout, stderr, the working directory
_BACKLOG = 8
_PR_SET_PDEATHSIG = 1
_ARG_START, _ENV_START = 48, 50  # fields of /proc/PID/stat as counted in proc(5); the field after each is the end
_FIRST_FIELD = 3  # after the name, which may contain any characters
_LIMITS = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})
# variables with which Python or the loader would have loaded other files
_OF_THE_LOADER = (b"LD_", b"PYTHON")


def main() -> int:
    """Serves until the runner ends, or until the socket belongs to another template. Returns 1 if it cannot listen."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(sys.argv[1]):
        return 1
    # An agent that needs one of them will report what is missing.
    with contextlib.suppress(ImportError, RuntimeError, OSError):
        load_mpi()
    with contextlib.suppress(ImportError):
        os.environ["OPENBLAS_NUM_THREADS"] = "1"  # else NumPy's library starts threads as it is loaded
        prepare()
    path = Path(os.environ[Variable.RAM_DIR], SOCKET)
    try:
        listener, inode = _listen(path)
    except OSError as error:
        print(f"ckpt.agent.template: {path}: {error.strerror or error}", file=sys.stderr, flush=True)
        return 1
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the shim gets the agents' exit codes
    gc.collect()
    gc.freeze()  # loaded objects stay shared with the agents
    if (connection := _connected(listener, path, inode)) is None:
        return 0
    listener.close()
    return _agent(connection)


def _listen(path: Path) -> tuple[socket.socket, int]:
    """Replaces a template that has ended. Returns the socket and its inode."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    before = os.umask(0o177)
    try:
        path.unlink(missing_ok=True)
        listener.bind(os.fspath(path))
        inode = path.stat().st_ino
    finally:
        os.umask(before)
    listener.listen(_BACKLOG)
    listener.settimeout(_LOOK_S)
    return listener, inode


def _connected(listener: socket.socket, path: Path, inode: int) -> socket.socket | None:
    """The connection in a forked process; None in the template, once the socket at its path is another one."""
    while True:
        with contextlib.suppress(TimeoutError):
            connection, _ = listener.accept()
            with connection:
                if peer_of(connection)[1] == os.getuid() and os.fork() == 0:
                    return connection.dup()
        try:
            if path.stat().st_ino != inode:
                return None
        except OSError:
            return None


def _agent(connection: socket.socket) -> int:
    """Becomes the agent for a shim. Returns its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        _take_the_place_of(connection)
    except (OSError, ValueError) as error:  # the shim, if it is still there, becomes the agent itself
        print(f"ckpt.agent.template: no agent forked: {error}", file=sys.stderr, flush=True)
        return 1
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # only the agent's own thread handles it
    threading.Thread(target=_follow, args=(connection,), name="shim", daemon=True).start()
    sys.argv[:] = ["ckpt.agent"]
    code = run_agent(forked=True)
    with contextlib.suppress(OSError):
        connection.sendall(bytes([code]))
    return code


def _take_the_place_of(connection: socket.socket) -> None:
    """Takes over the shim's descriptors and attributes, and tells the shim. Raises OSError or ValueError."""
    connection.settimeout(_REQUEST_S)
    connection.sendall(FORKED)
    request, descriptors = _receive(connection)
    requested = dict(item.partition(b"=")[::2] for item in request.split(b"\0"))
    namespaces = {name.encode(): os.readlink(f"/proc/self/ns/{name}").encode() for name in NAMESPACES}
    environment = {name: value for name, value in requested.items() if name not in namespaces}
    if {name: requested.get(name) for name in namespaces} != namespaces:
        raise ValueError("the agent belongs to other namespaces")
    if _of_the_loader(environment) != _of_the_loader(os.environb):
        raise ValueError("the agent's loader or Python has other search paths than the template's")
    pid = peer_of(connection)[0]
    for limit in _LIMITS:
        if (limits := resource.prlimit(pid, limit)) != resource.getrlimit(limit):
            resource.setrlimit(limit, limits)
    os.sched_setaffinity(0, os.sched_getaffinity(pid))
    out, err, directory = descriptors
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.fchdir(directory)
    for descriptor in descriptors:
        os.close(descriptor)
    os.environb.clear()
    os.environb.update(environment)
    _show([b"-m", b"ckpt.agent"], environment)
    register(Path(os.environ[Variable.RAM_DIR]))  # before the shim is told: a runner always finds one of the two
    connection.settimeout(None)
    connection.sendall(READY)


def _receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    """The request and its descriptors. Raises OSError or ValueError."""
    size, descriptors, _, _ = socket.recv_fds(connection, 8, _DESCRIPTORS)
    left = int.from_bytes(size, "big")
    if len(size) != 8 or left > _MAX_REQUEST_BYTES or len(descriptors) != _DESCRIPTORS:
        raise ValueError(f"request of {left} bytes with {len(descriptors)} descriptors, expected {_DESCRIPTORS}")
    request = bytearray()
    while left:
        if not (data := connection.recv(left)):
            raise ConnectionError("the shim has ended")
        request += data
        left -= len(data)
    return bytes(request), descriptors


def _of_the_loader(environment: Mapping[bytes, bytes]) -> dict[bytes, list[bytes]]:
    """The variables that determine which libraries and modules are loaded.

    mpirun adds its own library directory, which has no effect if MPI was loaded from there.
    """
    with open("/proc/self/maps", "rb") as maps:
        own = {os.path.dirname(line.split(maxsplit=5)[5].strip()) for line in maps if b"/libmpi.so" in line}
    found = {name: value.split(b":") for name, value in environment.items() if name.startswith(_OF_THE_LOADER)}
    searched = found.pop(b"LD_LIBRARY_PATH", [])
    if left := [path for path in searched if path and os.path.realpath(path) not in own]:
        found[b"LD_LIBRARY_PATH"] = left
    return found


def _show(arguments: list[bytes], environment: Mapping[bytes, bytes]) -> None:
    """Makes /proc/PID/cmdline and /proc/PID/environ show what they would after an exec, because agents are found by
    them.

    There is only as much space as the template's own arguments and environment take. Entries that do not fit are left
    out, the longest first, and HOLDFAST_* last.
    """
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    python, *options = Path("/proc/self/cmdline").read_bytes().split(b"\0-m\0")[0].split(b"\0")
    items = map(b"=".join, environment.items())
    shortest_first = sorted(items, key=lambda word: (not word.startswith(b"HOLDFAST_"), len(word)))
    for field, words in ((_ARG_START, [python, *options, *arguments]), (_ENV_START, shortest_first)):
        start, end = (int(fields[number - _FIRST_FIELD]) for number in (field, field + 1))
        fitting = bytearray()
        for word in words:
            if len(fitting) + len(word) < end - start:
                fitting += word + b"\0"
        ctypes.memmove(start, bytes(fitting.ljust(end - start, b"\0")), end - start)


def _follow(connection: socket.socket) -> None:
    """Forwards the shim's signals, and ends with the shim."""
    with contextlib.suppress(OSError):
        while connection.recv(1) == TERMINATE:
            os.kill(os.getpid(), signal.SIGTERM)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
