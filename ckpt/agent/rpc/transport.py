"""The messages and byte transfers between the agents of an attempt. Only this module uses MPI.

A transport moves short messages (in order for each sender), and long byte ranges from memory map to memory map without
a copy. It never blocks: the caller polls. A world lives as long as its attempt. After an error it cannot be used any
more.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import Any, Protocol

from ckpt.errors import AgentError

MAX_MESSAGE_BYTES = 1 << 30  # as of a manifest: a node's part of it is one message
LEAST_MAX_TAG = 32767
_MESSAGE_TAG = 1
_PMIX_BOOL = 1  # pmix_common.h


class TransportError(AgentError):
    """The agents cannot reach each other any more. The attempt's saves are not committed; training continues."""


class Transfer(Protocol):
    """A byte range that is being sent or received."""

    def cancel(self) -> None:
        """Cancels, as far as possible. The buffer stays in use until done, so continue polling."""


class Transport(Protocol):
    """One agent's end of the MPI world. Ranks are node ranks: indices into the attempt's list of nodes."""

    rank: int
    size: int
    max_tag: int  # the highest tag of a range; MPI guarantees LEAST_MAX_TAG

    def send(self, to: int, message: bytes) -> None:
        """Queues a message of at most MAX_MESSAGE_BYTES. Raises TransportError."""

    def receive(self) -> tuple[int, bytes] | None:
        """The next complete message and its sender, or None. Messages of one sender arrive in the order sent."""

    def send_range(self, to: int, tag: int, data: memoryview) -> Transfer:
        """Starts to send bytes under `tag`. The buffer must stay unchanged until done.

        Ranges under one tag are received in the order sent; each is received whole into a buffer of its length.
        """

    def receive_range(self, source: int, tag: int, into: memoryview) -> Transfer:
        """Starts to receive bytes; the receiver chooses the tag (1 to `max_tag`) and tells the sender."""

    def done(self, transfers: Sequence[Any]) -> list[int]:
        """Makes progress. Returns the indices of completed transfers, whose buffers may be read or reused.

        Each index is returned once, and must not be passed again. Raises TransportError.
        """

    def close(self) -> None:
        """Leaves the world. Collective: returns when all agents have called it, so the caller needs a deadline."""


class SoloTransport:
    """A world of one node, which has no other node to send to."""

    rank = 0
    size = 1
    max_tag = LEAST_MAX_TAG

    def send(self, to: int, message: bytes) -> None:
        raise TransportError(f"message to node rank {to}: this world has one node")

    def receive(self) -> tuple[int, bytes] | None:
        return None

    def send_range(self, to: int, tag: int, data: memoryview) -> Transfer:
        raise TransportError(f"bytes to node rank {to}: this world has one node")

    def receive_range(self, source: int, tag: int, into: memoryview) -> Transfer:
        raise TransportError(f"bytes from node rank {source}: this world has one node")

    def done(self, transfers: Sequence[Any]) -> list[int]:
        return []

    def close(self) -> None:
        return


def load_mpi() -> Any:
    """Loads Open MPI without initialising it. Raises ImportError or RuntimeError if it is missing."""
    import mpi4py

    mpi4py.rc.initialize = mpi4py.rc.finalize = False
    from mpi4py import MPI

    return MPI


def await_all_initialised() -> None:
    """Waits until MPI_Init has returned in all processes of the world. Collective.

    Open MPI 5 adds COMM_WORLD to its receiver only after the last fence of MPI_Init. Under Slurm that fence does not
    wait, because it collects no data (22.05). A process that is late, as on a busy node, then gets SIGSEGV from the
    first message of another one (open-mpi/ompi#12495, pull 13559). This fence collects, and sends no message of MPI.
    """
    try:
        pmix = ctypes.CDLL("libpmix.so.2", mode=os.RTLD_NOW | os.RTLD_NOLOAD)  # the one that MPI_Init has loaded
        create, load, free = pmix.PMIx_Info_create, pmix.PMIx_Info_load, pmix.PMIx_Info_free
    except (OSError, AttributeError):  # not Open MPI 5
        return
    create.restype, one = ctypes.c_void_p, ctypes.c_size_t(1)
    collect = ctypes.c_void_p(create(one))
    load(collect, b"pmix.collect", ctypes.byref(ctypes.c_bool(True)), ctypes.c_uint16(_PMIX_BOOL))
    pmix.PMIx_Fence(None, ctypes.c_size_t(0), collect, one)
    free(collect, one)


class MpiTransport:
    """A world of one MPI process per node. MPI's order of ranks does not matter."""

    def __init__(self, nodes: Sequence[str], node: str) -> None:
        """Initialises MPI. Collective: returns when every node's agent has called it.

        Args:
            nodes: the attempt's nodes in node-rank order.

        Raises:
            TransportError: the MPI world is not one process for each node.
        """
        MPI = self._mpi = load_mpi()
        # by ctypes, because mpi4py holds the GIL during MPI_Init and MPI_Finalize, so no deadline could end it
        self._library = ctypes.CDLL(MPI.__file__)
        # only the thread of the event loop calls MPI
        self._library.MPI_Init_thread(None, None, MPI.THREAD_FUNNELED, ctypes.byref(ctypes.c_int()))
        await_all_initialised()
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
        self.max_tag: int = world.Get_attr(MPI.TAG_UB)  # 2**31 - 1 with TCP, 2**23 - 1 with UCX
        self._check_names(nodes, node)
        self._sending: list[tuple[Any, bytes]] = []  # the bytes must live as long as their request
        self._arriving: list[tuple[int, Any, bytearray]] = []

    def _check_names(self, nodes: Sequence[str], node: str) -> None:
        """Checks the names too: the count alone would not show two processes on one node and none on another."""
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
        """The oldest complete message whose sender has no older incomplete one."""
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
        """One MPI call for all transfers.

        Each call yields the core if nothing has arrived and processes outnumber cores.
        """
        try:
            return self._mpi.Request.Testsome([transfer.request for transfer in transfers]) or []
        except self._mpi.Exception as error:
            raise TransportError(f"bytes under way: {error}") from None

    def close(self) -> None:
        self._library.MPI_Finalize()


class _MpiSend:
    """A running send, which keeps its buffer alive. MPI cannot cancel it."""

    def __init__(self, mpi: Any, request: Any, buffer: memoryview) -> None:
        self._mpi = mpi
        self.request = request
        self._buffer = buffer

    def cancel(self) -> None:
        return


class _MpiReceive(_MpiSend):
    """A running receive. Even if it is cancelled, MPI may write to its buffer until the request completes."""

    def cancel(self) -> None:
        try:
            if self.request != self._mpi.REQUEST_NULL:
                self.request.Cancel()
        except self._mpi.Exception as error:
            raise TransportError(f"cancelling a receive: {error}") from None


def world_of(comm: Any) -> dict[str, str]:
    """Rank, world size, local rank and local world size as torchrun's variables. Collective over mpi4py's `comm`."""
    from mpi4py import MPI

    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    try:
        return {
            "RANK": str(comm.rank), "WORLD_SIZE": str(comm.size), "LOCAL_RANK": str(node.rank),
            "LOCAL_WORLD_SIZE": str(node.size),
        }  # fmt: skip
    finally:
        node.Free()
