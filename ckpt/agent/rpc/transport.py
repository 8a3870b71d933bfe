"""How the agents of an attempt reach each other. The only door to MPI.

A transport moves short messages (ordered per sender) and long byte ranges from memory map to memory map without a copy.
It never blocks: the caller polls. One world lives as long as one attempt; after an error it is of no further use.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any, Protocol

from ckpt.errors import AgentError

MAX_MESSAGE_BYTES = 64 << 20
_MESSAGE_TAG = 1
# Where two nodes of a step call each other at the same moment, Slurm's PMIx lets one of them connect: the one whose
# number in the step is above the other's number in the job (pmixp_dconn.h, 22.05 to 24.11). Without the job's first
# node in the step that is neither, and both wait for ever. Two agents do so in the ring; so one of them comes later,
# by more on a busy node, where the first call takes longer. (SLURM_PMIX_DIRECT_CONN=false: no ring ends, 22.05.)
_APART_S = 0.15
_FARTHEST_APART_S = 2.0


class TransportError(AgentError):
    """The agents cannot reach each other any more. The attempt's saves stay uncommitted; training goes on."""


class Transfer(Protocol):
    """A byte range under way."""

    def cancel(self) -> None:
        """Gives up, as far as that is possible. The buffer stays in use until done, so go on polling."""


class Transport(Protocol):
    """One agent's end of the world. Ranks are node ranks: indices into the attempt's list of nodes."""

    rank: int
    size: int

    def send(self, to: int, message: bytes) -> None:
        """Queues a message of at most MAX_MESSAGE_BYTES; raises TransportError."""

    def receive(self) -> tuple[int, bytes] | None:
        """The next complete message and its sender, or None. Messages of one sender arrive in the order sent."""

    def send_range(self, to: int, tag: int, data: memoryview) -> Transfer:
        """Starts to send bytes to whoever receives them under `tag`; the buffer must stay unchanged until done.

        Ranges under one tag are received in the order sent; each is received whole into a buffer of its length.
        """

    def receive_range(self, source: int, tag: int, into: memoryview) -> Transfer:
        """Starts to receive bytes; the receiver chooses the tag (1 to 2**30) and tells the sender."""

    def done(self, transfers: Sequence[Any]) -> list[int]:
        """Makes progress; indices of this end's transfers whose buffer may be read (receive) or reused (send) now.

        Each is told once, and not given again. Raises TransportError.
        """

    def close(self) -> None:
        """Leaves the world. Collective: returns when all have come, so the caller guards it with a deadline."""


class SoloTransport:
    """A world of one node: nobody to talk to but itself."""

    rank = 0
    size = 1

    def __init__(self) -> None:
        self._sent: dict[int, deque[_Loop]] = defaultdict(deque)  # by tag, what waits for its other end
        self._wanted: dict[int, deque[_Loop]] = defaultdict(deque)

    def send(self, to: int, message: bytes) -> None:
        raise TransportError(f"message to node rank {to}: this world has one node")

    def receive(self) -> tuple[int, bytes] | None:
        return None

    def send_range(self, to: int, tag: int, data: memoryview) -> Transfer:
        if to:
            raise TransportError(f"bytes to node rank {to}: this world has one node")
        return self._loop(tag, data, self._sent)

    def receive_range(self, source: int, tag: int, into: memoryview) -> Transfer:
        if source:
            raise TransportError(f"bytes from node rank {source}: this world has one node")
        return self._loop(tag, into, self._wanted)

    def done(self, transfers: Sequence[Any]) -> list[int]:
        return [i for i, transfer in enumerate(transfers) if transfer.ended]

    def close(self) -> None:
        return

    def _loop(self, tag: int, data: memoryview, queue: dict[int, deque[_Loop]]) -> _Loop:
        """Ends that meet are done at once, in the order in which each side came."""
        transfer = _Loop(data)
        queue[tag].append(transfer)
        while (sent := self._sent[tag]) and (wanted := self._wanted[tag]):
            if (end := wanted.popleft()).ended:
                continue
            start = sent.popleft()
            end.data[:] = start.data
            start.ended = end.ended = True
        if not self._sent[tag] and not self._wanted[tag]:
            del self._sent[tag], self._wanted[tag]
        return transfer


class _Loop:
    """One end of a range that a node sends to itself."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.ended = False

    def cancel(self) -> None:
        self.ended = True


def load_mpi() -> Any:
    """Open MPI, loaded and not initialised. Raises ImportError or RuntimeError where it is missing."""
    import mpi4py

    mpi4py.rc.initialize = mpi4py.rc.finalize = False
    from mpi4py import MPI

    return MPI


def apart_s() -> float:
    """How much later the second of two agents comes: longer where more processes wait for a CPU."""
    waiting = os.getloadavg()[0] / (os.cpu_count() or 1)
    return min(_FARTHEST_APART_S, _APART_S * max(1.0, waiting))


class MpiTransport:
    """A world of one MPI process per node; MPI's order of ranks does not matter."""

    def __init__(self, nodes: Sequence[str], node: str) -> None:
        """Initialises MPI. Collective: returns when every node's agent has come.

        Args:
            nodes: the attempt's nodes in node-rank order.
            node: this process's node.

        Raises:
            TransportError: the MPI world is not one process for each node.
        """
        if len(nodes) == 2 and node == nodes[1] and "SLURM_STEP_ID" in os.environ:
            time.sleep(apart_s())
        MPI = self._mpi = load_mpi()
        # By ctypes: mpi4py holds the GIL while it initialises and finalises MPI, and no deadline of ours could end it.
        self._library = ctypes.CDLL(MPI.__file__)
        # Only the event loop's thread calls MPI.
        self._library.MPI_Init_thread(None, None, MPI.THREAD_FUNNELED, ctypes.byref(ctypes.c_int()))
        world = MPI.COMM_WORLD
        world.Set_errhandler(MPI.ERRORS_RETURN)
        if world.size != len(nodes):
            raise TransportError(
                f"MPI world: got {world.size} processes, expected {len(nodes)}, one for each of {', '.join(nodes)}; "
                "start the agents with one srun --mpi=pmix or mpirun over exactly these nodes"
            )
        self._messages = world.Split(0, key=nodes.index(node))
        self._ranges = self._messages.Dup()
        for communicator in (self._messages, self._ranges):
            communicator.Set_errhandler(MPI.ERRORS_RETURN)
        self.rank: int = self._messages.rank
        self.size: int = self._messages.size
        self._check_names(nodes, node)
        self._sending: list[tuple[Any, bytes]] = []  # the bytes must live as long as their request
        self._arriving: list[tuple[int, Any, bytearray]] = []

    def _check_names(self, nodes: Sequence[str], node: str) -> None:
        """Two processes on one node, and none on another, would go unnoticed by the count alone."""
        mine = bytearray(node.encode()[:256].ljust(256))
        everyone = bytearray(256 * self.size)
        self._messages.Allgather([mine, self._mpi.BYTE], [everyone, self._mpi.BYTE])
        found = [everyone[i * 256 : (i + 1) * 256].decode(errors="replace").rstrip() for i in range(self.size)]
        if found != list(nodes):
            raise TransportError(f"MPI world: got agents for {', '.join(found)}, expected {', '.join(nodes)}")

    def send(self, to: int, message: bytes) -> None:
        if len(message) > MAX_MESSAGE_BYTES:
            raise TransportError(f"message to node rank {to}: {len(message)} bytes, at most {MAX_MESSAGE_BYTES}")
        try:
            request = self._messages.Isend([message, self._mpi.BYTE], dest=to, tag=_MESSAGE_TAG)
        except self._mpi.Exception as error:
            raise TransportError(f"message to node rank {to}: {error}") from None
        self._sending.append((request, message))

    def receive(self) -> tuple[int, bytes] | None:
        try:
            self._sending = [entry for entry in self._sending if not entry[0].Test()]
            status = self._mpi.Status()
            if (message := self._messages.Improbe(tag=_MESSAGE_TAG, status=status)) is not None:
                buffer = bytearray(status.Get_count(self._mpi.BYTE))
                request = message.Irecv([buffer, self._mpi.BYTE])
                self._arriving.append((status.Get_source(), request, buffer))
            return self._first_complete()
        except self._mpi.Exception as error:
            raise TransportError(f"message: {error}") from None

    def _first_complete(self) -> tuple[int, bytes] | None:
        """The oldest message that is whole and whose sender has no older one still arriving."""
        waiting: set[int] = set()
        for entry in self._arriving:
            source, request, buffer = entry
            if source not in waiting and request.Test():
                self._arriving.remove(entry)
                return source, bytes(buffer)
            waiting.add(source)
        return None

    def send_range(self, to: int, tag: int, data: memoryview) -> Transfer:
        try:
            return _MpiSend(self._mpi, self._ranges.Isend([data, self._mpi.BYTE], dest=to, tag=tag), data)
        except self._mpi.Exception as error:
            raise TransportError(f"bytes to node rank {to}: {error}") from None

    def receive_range(self, source: int, tag: int, into: memoryview) -> Transfer:
        try:
            return _MpiReceive(self._mpi, self._ranges.Irecv([into, self._mpi.BYTE], source=source, tag=tag), into)
        except self._mpi.Exception as error:
            raise TransportError(f"bytes from node rank {source}: {error}") from None

    def done(self, transfers: Sequence[Any]) -> list[int]:
        """One call of MPI for all: each yields the core where nothing has come and processes outnumber cores."""
        try:
            return self._mpi.Request.Testsome([transfer.request for transfer in transfers]) or []
        except self._mpi.Exception as error:
            raise TransportError(f"bytes under way: {error}") from None

    def close(self) -> None:
        self._library.MPI_Finalize()


class _MpiSend:
    """A send under way, with its buffer kept alive. MPI cannot take it back."""

    def __init__(self, mpi: Any, request: Any, buffer: memoryview) -> None:
        self._mpi = mpi
        self.request = request
        self._buffer = buffer

    def cancel(self) -> None:
        return


class _MpiReceive(_MpiSend):
    """A receive under way. Cancelled or not, MPI may write to its buffer until the request completes."""

    def cancel(self) -> None:
        try:
            if self.request != self._mpi.REQUEST_NULL:
                self.request.Cancel()
        except self._mpi.Exception as error:
            raise TransportError(f"cancelling a receive: {error}") from None


def world_of(comm: Any) -> dict[str, str]:
    """Which rank of how many, in the world and on its node, in torchrun's words. Collective over `comm` of mpi4py."""
    from mpi4py import MPI

    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    try:
        return {
            "RANK": str(comm.rank), "WORLD_SIZE": str(comm.size), "LOCAL_RANK": str(node.rank),
            "LOCAL_WORLD_SIZE": str(node.size),
        }  # fmt: skip
    finally:
        node.Free()
