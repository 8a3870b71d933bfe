"""Measures an all-reduce over the GPUs (NCCL), or without GPUs over some processes (gloo), of one node or of two nodes.

A separate program, `python -m lifecycle.health.allreduce`, because it loads torch. It prints one line of JSON. Over
two nodes it is started once on each, by srun.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

LONG_S = 0.5
"""The message does not grow beyond an all-reduce of this time, so that a slow network gives a result in seconds too."""

GPU_BYTES, CPU_BYTES = 1 << 30, 16 << 20
"""Largest message. On a fast network the bus bandwidth grows with the message."""

_MEASURE_S = 3.0
_MIN_ROUNDS, _MAX_ROUNDS = 3, 20
_FIRST_BYTES = 1 << 20
_GROWTH = 4
_WAIT = timedelta(seconds=60)


def main(arguments: list[str] | None = None) -> int:
    """Forks this node's ranks and waits for them. Returns 0 if all succeeded."""
    options = _options(arguments)
    import torch  # once, before the ranks are forked: CUDA is not touched until then

    ranks = options.ranks or torch.cuda.device_count() or 2
    children = {_fork(options, rank, ranks): rank for rank in range(ranks)}
    failed = [rank for pid, rank in children.items() if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0]
    return 1 if failed else 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="where rank 0 runs")
    parser.add_argument("--port", type=int, required=True, help="where rank 0 listens")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--node-rank", type=int, default=int(os.environ.get("SLURM_PROCID", "0")))
    parser.add_argument("--ranks", type=int, default=0, help="on each node; 0: one for each GPU, 2 without GPUs")
    parser.add_argument("--bytes", type=int, default=0, help="of the message at most; 0: 1 GiB on GPUs, 16 MiB without")
    return parser.parse_args(arguments)


def _fork(options: argparse.Namespace, local: int, ranks: int) -> int:
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        _be_rank(options, local, ranks)
        code = 0
    except Exception as error:
        print(
            f"rank {local}: {type(error).__name__}: {' '.join(str(error).split())[:300]}", file=sys.stderr, flush=True
        )
    finally:
        os._exit(code)


def _be_rank(options: argparse.Namespace, local: int, ranks: int) -> None:
    import torch
    import torch.distributed as dist

    gpu = torch.cuda.is_available()
    rank, world = options.node_rank * ranks + local, options.nodes * ranks
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "nccl")
        os.environ |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET", "NCCL_DEBUG_FILE": str(log)}
        if gpu:
            torch.cuda.set_device(local)
        store = dist.TCPStore(options.host, options.port, world, rank == 0, timeout=_WAIT)
        dist.init_process_group("nccl" if gpu else "gloo", store=store, rank=rank, world_size=world, timeout=_WAIT)
        seconds, tensor = _measure(torch, dist, options.bytes or (GPU_BYTES if gpu else CPU_BYTES), gpu)
        nbytes = tensor.nbytes
        tensor.fill_(1.0)
        dist.all_reduce(tensor)
        right = bool((tensor == float(world)).all())
        facts: dict[str, Any] = {
            "backend": dist.get_backend(),
            "ranks": world,
            "bytes": nbytes,
            "seconds": seconds,
            "bus_gb_s": 2 * (world - 1) / world * nbytes / seconds / 1e9,  # as nccl-tests defines it
            "right": right,
            "nccl_log": log.read_text(errors="replace")[:65536] if log.exists() else "",
        }
        if rank == 0:
            print(json.dumps(facts), flush=True)
        dist.destroy_process_group()


def _measure(torch: Any, dist: Any, most_bytes: int, gpu: bool) -> tuple[float, Any]:
    """The seconds of one all-reduce, averaged over some, and its tensor. The message has `most_bytes`, or takes LONG_S.

    Collective: all ranks use the sizes and the number of rounds of the slowest rank.
    """
    device = "cuda" if gpu else "cpu"

    def timed(tensor: Any, rounds: int) -> float:
        dist.barrier()
        start_s = time.perf_counter()
        for _ in range(rounds):
            dist.all_reduce(tensor)
        if gpu:
            torch.cuda.synchronize()
        slowest = torch.tensor([(time.perf_counter() - start_s) / rounds], device=device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        return float(slowest[0])

    nbytes = min(_FIRST_BYTES, most_bytes)
    while True:
        tensor = torch.ones(nbytes // 4, device=device)
        timed(tensor, 1)  # makes connections and allocates buffers
        once_s = timed(tensor, 1)
        if nbytes >= most_bytes or once_s > LONG_S:
            seconds = timed(tensor, min(_MAX_ROUNDS, max(_MIN_ROUNDS, int(_MEASURE_S / once_s))))
            if nbytes >= most_bytes or seconds > LONG_S:
                return seconds, tensor  # else it was delayed only once, and is not slow
        nbytes = min(nbytes * _GROWTH, most_bytes)


if __name__ == "__main__":
    sys.exit(main())
