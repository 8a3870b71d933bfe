"""Variables of the environment that slow down or break distributed training: stale advice, and switches left on.

The table is about NVIDIA GPUs with NCCL, and EFA with libfabric 1.18 and aws-ofi-nccl 1.7 or newer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class VariableRemark:
    """A variable that should not be set, or not to this value.

    Attributes:
        variable: its name.
        value: its value.
        severity: "harmful": breaks or slows down training; "stale": useful with older versions, useless now.
        reason: why, and the next step.
    """

    variable: str
    value: str
    severity: Literal["harmful", "stale"]
    reason: str


@dataclass(frozen=True, kw_only=True)
class _Rule:
    """A row of the table. `name` and `value` are patterns that match the whole text and ignore case."""

    name: str
    severity: Literal["harmful", "stale"]
    reason: str
    value: str = r".*"
    only_with_efa: bool = False


def _harmful(name: str, reason: str, value: str = r".*", *, only_with_efa: bool = False) -> _Rule:
    return _Rule(name=name, severity="harmful", reason=reason, value=value, only_with_efa=only_with_efa)


def _stale(name: str, reason: str, value: str = r".*") -> _Rule:
    return _Rule(name=name, severity="stale", reason=reason, value=value)


_ON = r"1|y|yes|true|on"
_RULES = (
    _harmful(
        "RDMAV_.*",
        "meant for verbs programs: with EFA it makes every registration of memory a copy-on-fork mapping; unset it",
    ),
    _harmful("NCCL_NET", "NCCL then uses TCP sockets, EFA lies idle; unset it", "socket", only_with_efa=True),
    _harmful("NCCL_NET_PLUGIN", "no plugin means TCP sockets, EFA lies idle; unset it", "none", only_with_efa=True),
    _harmful("FI_PROVIDER", "libfabric then leaves EFA alone; unset it", r"(?!efa$).+", only_with_efa=True),
    _harmful("NCCL_SOCKET_IFNAME", "other nodes cannot be reached over loopback; use ^docker,lo,veth", r"=?lo\d*"),
    _harmful("NCCL_P2P_DISABLE", "GPUs of a node then do not use NVLink or PCIe with each other; unset it", _ON),
    _harmful("NCCL_SHM_DISABLE", "GPUs of a node may then talk through the network; unset it", _ON),
    _harmful("NCCL_IGNORE_DISABLED_P2P", "hides a broken NVLink; unset it", r"[12]"),
    _harmful("NCCL_PROTO", "without LL and LL128 small messages are slow; only plugins up to 1.5 needed it", "simple"),
    _harmful("NCCL_DEBUG", "every operation is logged; use WARN, or INFO with NCCL_DEBUG_SUBSYS=INIT,NET", "trace"),
    _harmful("CUDA_LAUNCH_BLOCKING", "the CPU waits for every kernel; for debugging only", _ON),
    _harmful("TORCH_DISTRIBUTED_DEBUG", "every collective is checked by another one; for debugging only", "detail"),
    _harmful("TORCH_NCCL_BLOCKING_WAIT", "the CPU waits for every collective; unset it", _ON),
    _stale("FI_PROVIDER", "the plugin selects efa by itself", "efa"),
    _stale("FI_EFA_FORK_SAFE", "libfabric 1.18 finds out by itself whether fork is safe (kernel 5.13 and newer)"),
    _stale("FI_EFA_USE_DEVICE_RDMA", "used where the device has it since libfabric 1.18"),
    _stale("FI_EFA_ENABLE_SHM_TRANSFER", "for loopback tests of the device only"),
    _stale("FI_EFA_USE_HUGE_PAGE", "on by default; 0 only where fork fails with ENOMEM", r"(?!0$).*"),
    _stale("NCCL_TUNER_PLUGIN", "the plugin brings its own tuner; one set by hand may be another version's"),
    _stale("NCCL_BUFFSIZE", "chosen by the tuner"),
    _stale("NCCL_ALGO", "chosen by the tuner"),
    _stale("NCCL_ASYNC_ERROR_HANDLING", "torch 2.2 renamed it TORCH_NCCL_ASYNC_ERROR_HANDLING; on by default"),
    _stale("NCCL_BLOCKING_WAIT", "torch 2.2 renamed it TORCH_NCCL_BLOCKING_WAIT; leave both unset"),
)


def remarks(environment: Mapping[str, str], *, has_efa: bool) -> list[VariableRemark]:
    """The remarks about an environment, harmful ones first.

    Args:
        environment: the variables.
        has_efa: whether the node has EFA devices; some settings are harmful only there.
    """
    found = [
        VariableRemark(variable=name, value=value, severity=rule.severity, reason=rule.reason)
        for name, value in sorted(environment.items())
        for rule in _RULES
        if (has_efa or not rule.only_with_efa) and _matches(rule.name)(name) and _matches(rule.value)(value)
    ]
    return sorted(found, key=lambda remark: remark.severity)  # "harmful" comes before "stale"


def _matches(pattern: str) -> Callable[[str], bool]:
    return lambda text: re.fullmatch(pattern, text.strip(), re.IGNORECASE | re.DOTALL) is not None
