"""What every transport must do, as one program that all ranks run. Under mpirun: `python transport_conformance.py`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from ckpt.agent.rpc.transport import MAX_MESSAGE_BYTES, MpiTransport, Transport, TransportError

WAIT_S = 30.0


def wait(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + WAIT_S
    while (value := condition()) is None or value is False:
        assert time.monotonic() < deadline, "nothing came"
        time.sleep(0.0001)
    return value


def check(transport: Transport) -> None:
    messages_keep_their_order_per_sender(transport)
    ranges_land_where_they_should_in_order(transport)
    a_cancelled_receive_completes(transport)
    an_oversize_message_is_refused(transport)


def messages_keep_their_order_per_sender(transport: Transport) -> None:
    """Small and large ones mixed: MPI moves them by different protocols."""
    others = [rank for rank in range(transport.size) if rank != transport.rank]
    sizes = [10, 3_000_000, 1, 200_000, 50, 0]
    for number, nbytes in enumerate(sizes):
        for other in others:
            transport.send(other, json.dumps([transport.rank, number, "x" * nbytes]).encode())
    seen: dict[int, list[int]] = {other: [] for other in others}
    for _ in range(len(sizes) * len(others)):
        source, body = wait(transport.receive)
        rank, number, text = json.loads(body)
        assert rank == source and len(text) == sizes[number]
        seen[source].append(number)
    assert all(numbers == list(range(len(sizes))) for numbers in seen.values())


def ranges_land_where_they_should_in_order(transport: Transport) -> None:
    """Each rank sends two streams under different tags to the next; they are received in the reverse order of tags."""
    to, source = (transport.rank + 1) % transport.size, (transport.rank - 1) % transport.size
    lengths = [1, 5_000_000, 64, 70_000]

    def data(rank: int, tag: int, i: int) -> bytes:
        return bytes([(rank * 50 + tag * 10 + i) % 256]) * lengths[i]

    transfers = []
    for tag in (7, transport.max_tag):
        for i in range(len(lengths)):
            transfers.append(transport.send_range(to, tag, memoryview(data(transport.rank, tag, i))))
    received = {}
    for tag in (transport.max_tag, 7):
        buffer = received[tag] = bytearray(sum(lengths))
        start = 0
        for length in lengths:
            transfers.append(transport.receive_range(source, tag, memoryview(buffer)[start : start + length]))
            start += length
    while transfers:
        for i in sorted(wait(lambda: transport.done(transfers) or None), reverse=True):
            del transfers[i]
    for tag, buffer in received.items():
        assert buffer == b"".join(data(source, tag, i) for i in range(len(lengths)))


def a_cancelled_receive_completes(transport: Transport) -> None:
    source = (transport.rank - 1) % transport.size
    buffer = bytearray(b"untouched")
    transfer = transport.receive_range(source, 99, memoryview(buffer))
    assert not transport.done([transfer])
    transfer.cancel()
    assert wait(lambda: transport.done([transfer]) or None) == [0]
    assert buffer == b"untouched"


def an_oversize_message_is_refused(transport: Transport) -> None:
    try:
        transport.send((transport.rank + 1) % transport.size, bytes(MAX_MESSAGE_BYTES + 1))
    except TransportError:
        return
    raise AssertionError("an oversize message was taken")


def main() -> None:
    """Under mpirun -n 3, with the ranks named in another order than MPI's: TRANSPORT_NODE says who we are."""
    import os

    nodes = ["a", "b", "c"]
    try:
        MpiTransport([*nodes, "d"], os.environ["TRANSPORT_NODE"])
    except TransportError as error:
        assert "got 3 processes, expected 4" in str(error)
    transport = MpiTransport(nodes, os.environ["TRANSPORT_NODE"])
    assert nodes[transport.rank] == os.environ["TRANSPORT_NODE"]
    check(transport)
    print(f"rank {transport.rank} conforms", flush=True)
    transport.close()


if __name__ == "__main__":
    main()
    sys.exit(0)
