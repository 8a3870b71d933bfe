"""The collectives that a worker has entered, from torch's Flight Recorder, readable while its main thread is blocked.

torch records each collective of each process group in C++, also those of DDP and FSDP, on gloo and NCCL. A thread of
the worker waits for COLLECTIVES_SIGNAL and writes the records into the worker's memory (memfd), where the runner reads
them. A worker that waits inside a collective answers, because torch releases the GIL there. A worker that does not
answer is stopped, or some C code holds its GIL.

Reader in the worker itself: `recorded()`. Its cost grows with the recorder's size (TORCH_FR_BUFFER_SIZE).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import pickle
import signal
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.base.processes import open_memfd, state_of

# see launcher.runner.stacks.STACK_SIGNAL; it is sent only to processes in which a thread waits for it
COLLECTIVES_SIGNAL = signal.SIGRTMAX - 3
ANSWER_S = 4.0  # for a sign of life of the thread
RECORDS_S = 4.0  # after it, for the records
RECORDED = 2000  # entries; torch's own default from 2.11 on
TOLD = 64  # newest entries of a process group that the runner is told

_MEMFD = "holdfast-collectives"
_HEAD = struct.Struct("<Q")  # the length of a part of the answer: first one of 0 bytes, then the records
_POLL_S = 0.02
_SIZE, _OLD_SIZE = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"
_RENAMED = (2, 11)  # the version of torch that reads _SIZE, and warns about _OLD_SIZE
_ELEMENT_BYTES = {"Double": 8, "Long": 8, "ComplexFloat": 8, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2, "Short": 2}

_members: dict[str, tuple[int, ...]] = {}  # by name, of groups that are destroyed too


@dataclass(frozen=True, kw_only=True)
class Collective:
    """One collective that this rank has entered. Times are `time.time_ns()` of its node.

    Attributes:
        group: name of the process group, the same on all of its ranks.
        seq: its number in the group, from 1; ranks that agree have the same operation under one number.
        op: for example "all_reduce"; point-to-point operations have a count of their own.
        is_p2p: whether it is such an operation.
        bytes: of all inputs; 0 for a barrier.
        sizes: shapes of the inputs, and of the outputs.
        dtype: of the inputs, as torch prints it; "" without inputs.
        entered_ns: when this rank called it.
        left_ns: when torch saw that it was complete; None if not yet, and always with gloo, which does not record it.
    """

    group: str
    seq: int
    op: str
    is_p2p: bool
    bytes: int
    sizes: str
    dtype: str
    entered_ns: int
    left_ns: int | None


@dataclass(frozen=True, kw_only=True)
class RecordedGroup:
    """A process group of this rank: its description, and the ranks in it, in order."""

    desc: str
    ranks: tuple[int, ...]


def recorder_variables(environment: Mapping[str, str], torch_version: str) -> dict[str, str]:
    """The variables that switch the Flight Recorder on. Empty if the user has set its size, 0 included."""
    if _SIZE in environment or _OLD_SIZE in environment:
        return {}
    version = tuple(int(part) for part in torch_version.split("+")[0].split(".")[:2])
    return {_SIZE if version >= _RENAMED else _OLD_SIZE: str(RECORDED)}


def recorded() -> tuple[list[Collective], dict[str, RecordedGroup]]:
    """In a worker: the recorded collectives, oldest first, and the process groups. Holds the GIL meanwhile."""
    from torch._C import _distributed_c10d as c10d  # here, because the runner imports this module without torch

    entries: list[Collective] = []
    groups = dict(_groups())
    for name in ("_dump_fr_trace", "_dump_nccl_trace"):  # gloo and other backends; NCCL
        if dump := getattr(c10d, name, None):
            trace = pickle.loads(dump(includeCollectives=True, includeStackTraces=False, onlyActive=False))
            found = sorted(trace.get("entries", ()), key=lambda entry: entry["record_id"])
            entries += [_collective(entry) for entry in found]
            for entry in found:
                group, desc = entry["process_group"]
                groups.setdefault(group, RecordedGroup(desc=desc, ranks=_members.get(group, ())))
    return sorted(entries, key=lambda entry: entry.entered_ns), groups


def remember_groups() -> None:
    """Keeps who is in which process group, before groups are destroyed."""
    for name, group in _groups():
        _members[name] = group.ranks


def answer_collective_requests() -> None:
    """In a worker, before it starts any thread: a thread answers COLLECTIVES_SIGNAL until the process ends."""
    memory = os.memfd_create(_MEMFD)
    signal.pthread_sigmask(signal.SIG_BLOCK, {COLLECTIVES_SIGNAL})
    threading.Thread(target=_answer, args=(memory,), name=_MEMFD, daemon=True).start()


async def ask(pid: int) -> dict[str, Any] | None:
    """In the runner: asks a worker for its collectives.

    Returns:
        {"collectives": the newest TOLD of each group, oldest first, "groups": {name: {desc, ranks}}, "problem": why
        there are none}; None if no Python thread of the worker answers; {} if it never answers such requests.
    """
    memory = open_memfd(pid, _MEMFD)
    if memory is None:
        return {}
    try:
        if state_of(pid) in ("", "T", "t", "Z"):
            return None
        before = os.fstat(memory).st_size
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, COLLECTIVES_SIGNAL)
        if await _part(memory, before, ANSWER_S) is None:
            return None
        text = await _part(memory, before + _HEAD.size, RECORDS_S)
        if text is None:
            return {"collectives": [], "groups": {}, "problem": f"its thread wrote no records in {RECORDS_S:g} s"}
        answer: dict[str, Any] = json.loads(text)
        return answer
    finally:
        os.close(memory)


async def _part(memory: int, at: int, timeout_s: float) -> bytes | None:
    """The part of an answer that begins at an offset; None if it is not complete in time."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        head = os.pread(memory, _HEAD.size, at)
        if len(head) == _HEAD.size:
            (length,) = _HEAD.unpack(head)
            text = os.pread(memory, length, at + _HEAD.size)
            if len(text) == length:
                return text
        if time.monotonic() > deadline_s:
            return None
        await asyncio.sleep(_POLL_S)


def _answer(memory: int) -> None:
    while True:
        signal.sigwait({COLLECTIVES_SIGNAL})
        os.write(memory, _HEAD.pack(0))
        try:
            answer = _told(*recorded())
        except Exception as error:  # the recorder's format may be another one in another torch
            answer = {"collectives": [], "groups": {}, "problem": f"{type(error).__name__}: {error}"}
        text = json.dumps(answer, separators=(",", ":")).encode()
        os.write(memory, _HEAD.pack(len(text)) + text)


def _told(entries: list[Collective], groups: Mapping[str, RecordedGroup]) -> dict[str, Any]:
    newest: dict[tuple[str, bool], list[Collective]] = {}
    for entry in entries:
        newest.setdefault((entry.group, entry.is_p2p), []).append(entry)
    told = sorted((entry for kept in newest.values() for entry in kept[-TOLD:]), key=lambda entry: entry.entered_ns)
    return {
        "collectives": [asdict(entry) for entry in told],
        "groups": {name: asdict(group) for name, group in groups.items()},
        "problem": "",
    }


def _collective(entry: Mapping[str, Any]) -> Collective:
    """An entry of the Flight Recorder (version 2.x of its format)."""
    dtypes, sizes = entry["input_dtypes"], entry["input_sizes"]
    count = sum(math.prod(size) * _ELEMENT_BYTES.get(dtype, 1) for size, dtype in zip(sizes, dtypes, strict=False))
    is_p2p = bool(entry["is_p2p"])
    return Collective(
        group=entry["process_group"][0],
        seq=entry["p2p_seq_id" if is_p2p else "collective_seq_id"],
        op=entry["profiling_name"].rpartition(":")[2],
        is_p2p=is_p2p,
        bytes=count,
        sizes=f"{sizes} -> {entry['output_sizes']}",
        dtype=dtypes[0] if dtypes else "",
        entered_ns=entry["time_created_ns"],
        left_ns=entry["time_discovered_completed_ns"] or None,
    )


def _groups() -> Iterator[tuple[str, RecordedGroup]]:
    from torch.distributed import distributed_c10d

    world = distributed_c10d._world
    for group, ranks in list(world.pg_group_ranks.items()):
        name = world.pg_names.get(group)
        if name is not None:
            order = sorted(ranks, key=lambda rank: ranks[rank])
            yield name, RecordedGroup(desc=str(getattr(group, "group_desc", "")), ranks=tuple(order))
