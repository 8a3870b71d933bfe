"""The hardware that a machine of this type should have. For a type that is not in the table, nothing is expected."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from holdfast.settings.yaml_file import read_yaml

_TABLE = Path(__file__).with_name("versions.yaml")
_VENDOR = "sys/class/dmi/id/sys_vendor"
_PRODUCT = "sys/class/dmi/id/product_name"  # on EC2's Nitro machines this is the instance type


@dataclass(frozen=True, kw_only=True)
class Expected:
    """The hardware of one instance type, as its vendor publishes it; None for unpublished values.

    Attributes:
        instance: the type's name, such as p5.48xlarge.
        gpus: GPUs of the node.
        efa: EFA interfaces of the node.
        network_gbit_s: the node's network bandwidth, each direction.
        gpu_memory_bytes: memory of one GPU.
        nvlinks: active NVLinks of one GPU.
        nvlink_gb_s: NVLink bandwidth of one GPU, both directions together, GB/s.
        nvme_disks: local NVMe disks.
    """

    instance: str
    gpus: int = 0
    efa: int = 0
    network_gbit_s: float | None = None
    gpu_memory_bytes: int | None = None
    nvlinks: int | None = None
    nvlink_gb_s: float | None = None
    nvme_disks: int | None = None


def expected(instance: str | None) -> Expected | None:
    """The table's row of an instance type; None for an unknown one."""
    row = _instances().get(instance or "")
    return None if row is None else _row(str(instance), row)


def known_types() -> list[str]:
    """The instance types of the table."""
    return list(_instances())


def instance_type(root: Path = Path("/")) -> str | None:
    """The EC2 instance type from the firmware, without network access; None on other machines."""
    try:
        vendor = (root / _VENDOR).read_text(errors="replace").strip()
        product = (root / _PRODUCT).read_text(errors="replace").strip()
    except OSError:
        return None
    return product if vendor == "Amazon EC2" and product else None


@cache
def _instances() -> dict[str, dict[str, Any]]:
    return dict(read_yaml(_TABLE, "a table")["instances"])


def _row(instance: str, row: dict[str, Any]) -> Expected:
    """The values of a row that checks use; a row may have more."""
    known = {field.name for field in fields(Expected)}
    return Expected(instance=instance, **{key: value for key, value in row.items() if key in known})
