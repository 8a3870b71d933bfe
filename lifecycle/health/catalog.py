"""All health checks, in the order of the table. Add a new check here."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from lifecycle.errors import NodeUsageError
from lifecycle.health import (
    clock,
    collective,
    cpu,
    dcgm,
    disks,
    efa,
    gpu,
    host,
    kernel_log,
    last_verdict,
    loopback,
    mounts,
    names,
    nvlink,
    objects,
    processes,
)
from lifecycle.health.check import Check, Level

CHECKS: tuple[Check, ...] = (
    last_verdict.last_verdict,
    gpu.gpu_devices,
    gpu.gpu_count,
    gpu.gpu_driver,
    gpu.gpu_memory,
    gpu.gpu_ecc,
    gpu.gpu_row_remap,
    gpu.gpu_recovery,
    gpu.gpu_throttle,
    gpu.gpu_persistence,
    gpu.gpu_pcie,
    kernel_log.gpu_xid,
    nvlink.nvlink_state,
    nvlink.nvlink_errors,
    nvlink.fabric_manager,
    dcgm.dcgm_short,
    dcgm.dcgm_long,
    efa.efa_devices,
    efa.efa_modules,
    efa.gdrcopy,
    efa.locked_memory,
    efa.huge_pages,
    loopback.tcp_loopback,
    loopback.efa_loopback,
    collective.allreduce,
    collective.allreduce_pairs,
    host.memory_file_system,
    host.open_files,
    host.remove_ipc,
    cpu.cpus,
    cpu.cpu_speed,
    cpu.memory_errors,
    cpu.memory_bandwidth,
    kernel_log.kernel_errors,
    kernel_log.out_of_memory,
    processes.zombies,
    processes.stuck_processes,
    disks.disk_space,
    disks.shm_speed,
    disks.nvme_disks,
    disks.nvme_speed,
    mounts.root_writable,
    mounts.network_mounts,
    mounts.fstab,
    clock.clock,
    names.names,
    objects.s3,
)


def select(level: Level, only: Sequence[str] = (), skip: Sequence[str] = ()) -> list[Check]:
    """The checks of a level, or the named checks of any level.

    Raises:
        UsageError: no check has such a name.
    """
    names = {check.name for check in CHECKS}
    for name in (*only, *skip):
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            raise NodeUsageError(f"no health check {name}; {f'did you mean {near[0]}?' if near else 'see --list'}")
    chosen = [check for check in CHECKS if (check.name in only if only else level in check.levels)]
    return [check for check in chosen if check.name not in skip]
