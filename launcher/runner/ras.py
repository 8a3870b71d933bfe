"""NCCL's own view of a hang: what its RAS threads know, in `log/attempt-<k>/ras.txt`.

NCCL has RAS since 2.24 and switches it on by default. Its threads, one per process, know of each communicator which
ranks have launched how many operations, and which processes do not answer. One of them listens on each node. Each
answer is about the whole job, so one node asks. The text is for people: its form differs between releases of NCCL.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from holdfast.base.deadlines import within
from launcher.diagnosis.ras import processes
from launcher.runner.stacks import keep

RAS_S = 8.0  # RAS itself waits 5 s for processes that do not answer

_ADDRESS = "NCCL_RAS_ADDR"
_DEFAULT = "localhost:28028"
_MOST_BYTES = 1 << 22
_MOST_PROCESSES = 64


async def collect(log_dir: Path, environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """Appends the answer of this node's RAS to the file. Nothing listens without NCCL, and then there is no file.

    Args:
        log_dir: the attempt's folder.
        environment: of the workers.

    Returns:
        the processes of the job that stand out, as in launcher.diagnosis.ras:RasProcess.
    """
    address = environment.get(_ADDRESS, _DEFAULT)
    text = await _ask(address)
    if text:
        head = f"=== {time.strftime('%Y-%m-%d %H:%M:%S')} NCCL RAS at {address}\n"
        await keep(log_dir / "ras.txt", head + text + "\n")
    return [asdict(process) for process in processes(text)[:_MOST_PROCESSES]]


async def _ask(address: str) -> str:
    """What RAS answers within RAS_S; "" if nothing listens."""
    received = bytearray()
    with contextlib.suppress(OSError, ValueError, TimeoutError):
        await within(RAS_S, _receive(address, received))
    return received.decode(errors="replace")


async def _receive(address: str, received: bytearray) -> None:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    try:
        writer.write(b"verbose status\n")
        while len(received) < _MOST_BYTES and (part := await reader.read(1 << 16)):
            received += part
    finally:
        writer.close()
