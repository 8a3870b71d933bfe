"""Keeps process groups until the end of the process, because their destructor may deadlock.

`~ProcessGroupGloo` joins threads that may need the GIL. Its last owner can be a DDP model, whose destructor holds the
GIL. Then the process hangs for ever. This happens in DDP scripts that call `destroy_process_group()` and return.
"""

from __future__ import annotations

import functools
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from launcher.runner.collectives import remember_groups

_kept: set[dist.ProcessGroup] = set()


def keep_process_groups() -> None:
    """From now on, `destroy_process_group` shuts groups down but does not free them."""
    destroy = distributed_c10d.destroy_process_group

    @functools.wraps(destroy)
    def shut_down(*args: Any, **kwargs: Any) -> None:
        remember_groups()
        _kept.update(distributed_c10d._world.pg_map)
        destroy(*args, **kwargs)

    distributed_c10d.destroy_process_group = dist.destroy_process_group = shut_down
