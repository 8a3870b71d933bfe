"""The GPUs that a job asks for, in Slurm's options and on the local cluster."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

MAX_PER_NODE = 64  # a node's board, to which workers write their steps, has rows for 64 workers
EXPECTED = f"a whole number, from 0 to {MAX_PER_NODE}, or a type and a number such as a100:8, or auto"

_DEVICES = Path("/dev")
_GPUS = re.compile(r"(?:(?P<type>[A-Za-z0-9_.-]+):)?(?P<count>[0-9]{1,9})")
_ITEMS = re.compile(r",(?![^()]*\))")  # scontrol and sinfo print GPUs with their sockets: gpu:8(S:0,2)
_SHARED = ("shard", "mps")
_GRES_GPUS = re.compile(r"gpu(?::(?![0-9]+$)(?P<type>[^:]+))?(?::(?P<count>[0-9]{1,9}))?")


OfEachNode = Callable[[int], int]  # the GPUs of each node for `auto`, from the largest number of nodes


def not_here(nodes: int) -> int:
    """`auto` for a job that will get its nodes from Slurm: no GPUs, because Slurm gives none without a request."""
    return 0


def of_this_machine(nodes: int) -> int:
    """`auto` on the local cluster, whose nodes share this machine's GPUs."""
    return min(len(visible()) // nodes, MAX_PER_NODE)


def of_the_allocation(given: int) -> OfEachNode:
    """`auto` inside a job of a scheduler, which has given it that many GPUs on this node."""
    return lambda nodes: min(given, MAX_PER_NODE)


def requested(gpus_per_node: Any, gres: Any) -> int | str | None:
    """The GPUs of each node, in the notation of `gpus_per_node`: 8, or a100:8. None for `auto` without a request.

    Args:
        gpus_per_node: the value in the job file; None if it is absent.
        gres: the value of sbatch's --gres. If both ask for GPUs, they must be equal.

    Raises:
        ValueError: a value is not valid, or the two differ. The message begins with the key.
    """
    for problem in gres_problems(gres):
        raise ValueError(f"slurm.gres: {problem}")
    by_gres = of_gres(gres)
    gpus_per_node = None if gpus_per_node == "auto" else gpus_per_node
    if (value := by_gres if gpus_per_node is None else gpus_per_node) is None:
        return None
    if isinstance(value, str) and value.isdecimal():  # from the command line
        value = int(value)
    found = None if isinstance(value, bool) else _GPUS.fullmatch(str(value))
    kind = (found["type"] or "").lower() if found else ""
    if not found or int(found["count"]) > MAX_PER_NODE or (kind and not int(found["count"])) or kind == "gpu":
        raise ValueError(
            f"{'slurm.gres' if gpus_per_node is None else 'gpus_per_node'}: got {value!r:.80}, expected {EXPECTED}"
        )
    if by_gres not in (None, value):
        raise ValueError(f"gpus_per_node: got {value}, and slurm.gres asks for {gres}; leave one of them out")
    return int(value) if isinstance(value, int) else str(value)


def count(gpus: int | str) -> int:
    """The number of GPUs in `gpus_per_node`: 8 of a100:8."""
    return int(str(gpus).rpartition(":")[2])


def option(gpus_per_node: int | str, gres: Any) -> int | str | None:
    """The value for sbatch's --gpus-per-node; None if the job has no GPUs, or asks for them by --gres."""
    return gpus_per_node if gpus_per_node and of_gres(gres) is None else None


def of_gres(gres: Any) -> int | str | None:
    """The GPUs in a value of --gres, in the notation of `gpus_per_node`; None if it has none.

    Like `gpus_per_node`, --gres is for each node: gpu:8, or gpu:a100:8,lustre:1.
    """
    found = [_GRES_GPUS.fullmatch(item.strip()) for item in _ITEMS.split(str(gres or ""))]
    gpus = [(each["type"], int(each["count"] or 1)) for each in found if each]
    if len(gpus) == 1 and gpus[0][0] and gpus[0][1]:
        return f"{gpus[0][0]}:{gpus[0][1]}"
    return sum(count for _, count in gpus) if gpus else None


def gres_problems(gres: Any) -> Iterator[str]:
    """The requests for GPUs in a value of --gres that do not count as such: Slurm would refuse them, or grant parts of
    GPUs, and the job would train on the CPU."""
    for item in _ITEMS.split(str(gres or "")):
        name = _name(item)
        if name in _SHARED:
            yield f"got {item.strip()!r:.80}: a part of a GPU, expected whole ones, such as gpu:1"
        elif name == "gpu" and not _GRES_GPUS.fullmatch(item.strip()):
            plain = re.sub(r"[:=]+", ":", item.partition("(")[0].strip())
            plain = "gpu" + re.sub(r"^(gres[:/])?gpu", "", plain, flags=re.IGNORECASE)
            expected = plain if _GRES_GPUS.fullmatch(plain) else "gpu:8 or gpu:a100:8"
            yield f"got {item.strip()!r:.80}, expected {expected}"


def names_gpus(request: Any) -> bool:
    """Whether a value of --gres, of --tres-per-task, or sinfo's %G, names GPUs or parts of them."""
    return any(_name(item) in ("gpu", *_SHARED) for item in _ITEMS.split(str(request or "")))


def remark(gpus_per_node: int | str, workers_per_node: int) -> str:
    """What a user may not expect of a job on this machine: it trains on the CPU. "" if that is not so."""
    asked, here = count(gpus_per_node), len(visible())
    if here and not asked:
        found = "1 GPU" if here == 1 else f"{here} GPUs"
        return f"{found} here, none for the job: it trains on the CPU (see --gpus-per-node)"
    if asked and not here:
        workers = "1 worker" if workers_per_node == 1 else f"{workers_per_node} workers"
        return f"gpus_per_node: got {gpus_per_node}, and this machine has no GPU: {workers} a node train on the CPU"
    return ""


def _name(item: str) -> str:
    """The name in an item of --gres (gpu:8), of --tres-per-task (gres/gpu:8), or of what Slurm prints (gpu=8)."""
    words = [word for word in re.split(r"[:/=(]", item.strip().lower()) if word]
    words = words[1:] if words[:1] == ["gres"] else words
    return words[0] if words else ""


def each_of(total: Any, nodes: int) -> str | None:
    """`gpus_per_node` for a value of --gpus, which is for all nodes together (16, a100:16); None if not divisible."""
    kind, colon, count = str(total).rpartition(":")
    return f"{kind}{colon}{int(count) // nodes}" if count.isdecimal() and int(count) % nodes == 0 else None


def visible() -> list[str]:
    """This machine's NVIDIA GPUs, as CUDA_VISIBLE_DEVICES names them: those that the variable names, else all."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        found = [name.strip() for name in named.split(",")]
        return [name for name in found if name and not name.startswith("-")]  # -1 hides all GPUs
    return [str(number) for number in range(len(list(_DEVICES.glob("nvidia[0-9]*"))))]


def share(machine_gpus: Sequence[str], gpus_per_node: int | str, node_rank: int) -> Sequence[str]:
    """The GPUs of one of the local cluster's nodes. A node that replaces a lost one gets the lost one's."""
    each = count(gpus_per_node)
    return machine_gpus[node_rank * each : (node_rank + 1) * each]
