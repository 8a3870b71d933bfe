"""NCCL's RAS beside the stacks, from a server that answers as NCCL's guide shows (troubleshooting/ras.rst)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from launcher.runner import ras

ANSWER = """\
Communicators... (2.05s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4       7-8        32        32   RUNNING  INCOMPLETE

Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 3487984 on node 172.16.64.213 managing GPU 5
"""


def collected(tmp_path: Path, *parts: str) -> tuple[list[str], list[dict[str, Any]]]:
    """What the server was asked, and what is reported; the file is in tmp_path."""
    asked: list[str] = []
    told: list[dict[str, Any]] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readline()).decode())
        for part in parts:
            writer.write(part.encode())
            await writer.drain()
        writer.close()

    async def scenario() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            told.extend(await ras.collect(tmp_path, {"NCCL_RAS_ADDR": f"127.0.0.1:{port}"}))

    asyncio.run(asyncio.wait_for(scenario(), 60))
    return asked, told


def test_the_whole_answer_is_kept(tmp_path: Path) -> None:
    asked, told = collected(tmp_path, ANSWER[:50], ANSWER[50:])
    assert asked == ["verbose status\n"]
    assert told == [{"pid": 3487984, "node": "172.16.64.213", "says": "RAS gets no data from it"}]
    text = (tmp_path / "ras.txt").read_text()
    assert text.startswith("=== ") and ANSWER in text
    assert (tmp_path / "ras.txt").stat().st_mode & 0o077 == 0


def test_without_nccl_there_is_no_file(tmp_path: Path) -> None:
    asyncio.run(ras.collect(tmp_path, {"NCCL_RAS_ADDR": "127.0.0.1:1"}))
    asyncio.run(ras.collect(tmp_path, {"NCCL_RAS_ADDR": "no address"}))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_costs_only_the_file(tmp_path: Path) -> None:
    asked, told = collected(tmp_path / "missing", ANSWER)
    assert asked == ["verbose status\n"] and told
