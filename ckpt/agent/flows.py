"""Bytes on their way between agents, piece after piece, without a turn of the event loop for each.

A flow is a generator that starts transfers and yields each that it waits for, with the node at its other end. Whoever
polls the transport lets it go on as soon as that transfer is done: what has arrived is worked on while a cache has it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable

from ckpt.transport import Transfer

Steps = Generator[tuple[int, Transfer], None, None]

STALL_S = 30.0  # a transfer of which nothing arrives for so long has failed
ARRIVING = 4  # ranges of one flow that MPI may write to at once: keeps a wire busy, bounds the memory touched
AT_ONCE_BYTES = 2 << 20  # taken from one flow before others have their turn
LEAVING = 64  # ranges of one flow announced to their receiver, who takes them without waiting for this process

Landed = Callable[[int, int], None]  # which bytes of all ranges together are there: the first, how many


class StalledError(Exception):
    """Nothing came from a node, or was taken by it, for STALL_S."""

    def __init__(self, node: int) -> None:
        super().__init__(node)
        self.node = node


class Flows:
    """All flows of one agent."""

    def __init__(self) -> None:
        self._flows: list[_Flow] = []
        self._given_up: list[Transfer] = []

    def __bool__(self) -> bool:
        """Whether anything is under way."""
        return bool(self._flows or self._given_up)

    @property
    def ended(self) -> bool:
        """Whether somebody is to go on because a flow has ended."""
        return any(flow.ended.done() for flow in self._flows)

    async def run(self, steps: Steps) -> None:
        """Returns when the steps have ended; raises what they do, or StalledError."""
        flow = _Flow(steps)
        flow.go_on()
        self._flows.append(flow)
        try:
            await flow.ended
        finally:
            self._flows.remove(flow)
            steps.close()

    def advance(self) -> bool:
        """Lets every flow go on that can, by one step; True when any could. Raises TransportError."""
        if self._given_up:
            self._given_up = [transfer for transfer in self._given_up if not transfer.done()]
        moved = any([flow.advance() for flow in self._flows])
        if not moved:
            for flow in self._flows:
                flow.check()
        return moved

    def fail(self, error: Exception) -> None:
        """Nothing will arrive any more."""
        for flow in self._flows:
            flow.fail(error)

    def give_up(self, transfers: Iterable[Transfer]) -> None:
        """For the end of a flow that is cut short: MPI may go on using the buffers for a while."""
        for transfer in transfers:
            transfer.cancel()
            self._given_up.append(transfer)

    def receiving(
        self, node: int, receive: Callable[[memoryview], Transfer], into: Iterable[memoryview], landed: Landed
    ) -> Steps:
        """Receives ranges in order; `landed` is told of each before the next but few are asked for."""
        under_way: deque[tuple[int, Transfer]] = deque()
        at = told = 0
        try:
            for piece in into:
                under_way.append((len(piece), receive(piece)))
                # Through shared memory MPI copies what is announced as soon as it is asked for.
                while under_way and ((here := under_way[0][1].done()) or len(under_way) == ARRIVING):
                    if not here or at - told >= AT_ONCE_BYTES:
                        told = at
                        yield node, under_way[0][1]
                    nbytes, _ = under_way.popleft()
                    landed(at, nbytes)
                    at += nbytes
            while under_way:
                yield node, under_way[0][1]
                nbytes, _ = under_way.popleft()
                landed(at, nbytes)
                at += nbytes
        finally:
            self.give_up(transfer for _, transfer in under_way)

    def sending(self, node: int, send: Callable[[memoryview], Transfer], ranges: Iterable[memoryview]) -> Steps:
        """Sends ranges in order."""
        under_way: deque[Transfer] = deque()
        try:
            for piece in ranges:
                if len(under_way) == LEAVING:
                    yield node, under_way[LEAVING // 2]
                    while under_way and under_way[0].done():
                        under_way.popleft()
                under_way.append(send(piece))
            while under_way:
                yield node, under_way[0]
                under_way.popleft()
        finally:
            self.give_up(under_way)


class _Flow:
    """One flow, and the transfer that it waits for."""

    def __init__(self, steps: Steps) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._steps = steps
        self._waits_for: tuple[int, Transfer] | None = None
        self._since_s = 0.0

    def advance(self) -> bool:
        """Goes on if it can; False when it could not."""
        if self.ended.done() or self._waits_for is None or not self._waits_for[1].done():
            return False
        self.go_on()
        return True

    def go_on(self) -> None:
        """Takes the next step."""
        self._since_s, self._waits_for = time.monotonic(), None
        try:
            self._waits_for = next(self._steps)
        except StopIteration:
            self.ended.set_result(None)
        except Exception as error:
            self.fail(error)

    def check(self) -> None:
        """Fails when it has waited too long."""
        if self._waits_for is not None and time.monotonic() - self._since_s > STALL_S:
            self.fail(StalledError(self._waits_for[0]))

    def fail(self, error: Exception) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)


def nobody(start: int, nbytes: int) -> None:
    """For bytes that nobody looks at as they come."""
