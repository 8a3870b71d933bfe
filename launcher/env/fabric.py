"""NCCL over EFA: sets the variables that it needs, and reads from NCCL's log which network it used.

NCCL falls back to TCP sockets, about twenty times slower, without an error. On a node with EFA this sets the few
variables that are still needed (libfabric 1.18, aws-ofi-nccl 1.7 and newer). On other nodes it sets nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lifecycle import Expected

MODES = ("require", "prefer", "any")

# What every plugin answers to: its name until 1.11; newer ones, "Libfabric" by default, take it on when it is asked for
# (aws-ofi-nccl pull request 530).
NETWORK_NAME = "AWS Libfabric"
# Since plugin 1.15 the library has this name, and one that only goes by libnccl-net.so is not found by it.
_PLUGIN = "libnccl-net-ofi.so"
_PLUGIN_DIRS = (
    "opt/amazon/ofi-nccl/lib",
    "opt/amazon/ofi-nccl/lib64",
    "opt/aws-ofi-nccl/lib",
    "opt/aws-ofi-nccl/lib64",
)
_AMAZON = "0x1d0f"  # PCI vendor

_NETWORK = re.compile(
    r"NCCL INFO (?:Assigned NET plugin (?P<assigned>.+?) to comm|Using network (?P<network>.+?))\s*$", re.M
)
_PROVIDER = re.compile(
    r"NET/OFI Selected [Pp]rovider is (?P<provider>[^\s,]+)(?:, fabric is (?P<fabric>\S+))?"
    r"(?: \(found (?P<nics>\d+) nics\))?"
)
_PLUGIN_VERSION = re.compile(r"NET/OFI (?:Initializing|Using) aws-ofi-nccl (?P<version>\S+)")
_COMPLAINT = re.compile(
    r"NCCL WARN (NET/OFI .*)|(NET/Plugin ?:.*(?:dlerror|[Cc]ould not find|No plugin found).*)|(No plugin found.*)"
    r"|NCCL WARN (.*(?:network .* not found|Failed to initialize any NET plugin).*)"
)


@dataclass(frozen=True, kw_only=True)
class Observed:
    """The network of one process, from NCCL's log.

    Attributes:
        network: the transport, such as "AWS Libfabric", "Socket" or "IB"; None if not logged yet.
        provider: libfabric's provider; None if libfabric is not used.
        nics: number of network cards that the provider found; None if not logged.
        plugin: version of aws-ofi-nccl.
        complaints: messages about a plugin or provider that does not work.
    """

    network: str | None = None
    provider: str | None = None
    nics: int | None = None
    plugin: str | None = None
    complaints: tuple[str, ...] = field(default=())

    @property
    def is_libfabric(self) -> bool:
        return self.network is not None and self.network.rpartition(" ")[2].lower() in ("libfabric", "ofi")


def read_nccl_log(text: str) -> Observed:
    """Parses a process's log with NCCL_DEBUG=INFO (subsystems INIT and NET)."""
    networks = [found["network"] or found["assigned"] for found in _NETWORK.finditer(text)]
    providers = list(_PROVIDER.finditer(text))
    plugin = _PLUGIN_VERSION.search(text)
    complaints = (next(filter(None, found.groups())) for found in _COMPLAINT.finditer(text))
    return Observed(
        network=networks[-1] if networks else None,
        provider=providers[-1]["provider"] if providers else None,
        nics=next((int(found["nics"]) for found in reversed(providers) if found["nics"]), None),
        plugin=plugin["version"] if plugin else None,
        complaints=tuple(dict.fromkeys(complaint.strip() for complaint in complaints)),
    )


def wrong(observed: Observed, expected: Expected | None) -> str | None:
    """What is wrong with the network of a process on a node with EFA; None if nothing is.

    Args:
        observed: the result of its log, with a network.
        expected: the hardware of the instance type; None if unknown: then any number of cards is accepted.
    """
    because = f": {observed.complaints[0]}" if observed.complaints else ""
    advice = "the EFA installer's libfabric and aws-ofi-nccl have to fit this NCCL; in a container, /dev/infiniband too"
    if not observed.is_libfabric:
        return f"NCCL uses network {observed.network}, expected libfabric over EFA{because}; {advice}"
    if observed.provider is not None and not observed.provider.startswith("efa"):
        return f"NCCL uses libfabric's provider {observed.provider}, expected efa{because}; {advice}"
    if expected is not None and observed.nics is not None and observed.nics != expected.efa:
        return (
            f"NCCL found {observed.nics} EFA cards, expected {expected.efa} on {expected.instance}; attach the missing "
            "ones to the instance, or have the node replaced"
        )
    return None


def efa_devices(root: Path = Path("/")) -> tuple[str, ...]:
    """Names of this node's EFA devices, such as rdmap86s0."""
    devices = root / "sys" / "class" / "infiniband"
    if not devices.is_dir():
        return ()
    return tuple(sorted(device.name for device in devices.iterdir() if _vendor(device) == _AMAZON))


def fabric_environment(
    mode: str, environment: Mapping[str, str], log_pattern: str, root: Path = Path("/")
) -> dict[str, str]:
    """Further variables for workers with GPUs on this node. Values in `environment` are kept.

    Args:
        mode: the job file's `fabric`: `require` also makes NCCL fail instead of falling back; `any` sets nothing.
        environment: the workers' variables so far.
        log_pattern: the path of each process's NCCL log; %p stands for its pid.
        root: the root of the file system.
    """
    if mode == "any" or not efa_devices(root):
        return {}
    wanted = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET", "NCCL_DEBUG_FILE": log_pattern}
    if plugin_path(environment, root) is not None:
        wanted["NCCL_NET_PLUGIN"] = "ofi"
    if mode == "require":
        wanted["NCCL_NET"] = NETWORK_NAME
    return {name: value for name, value in wanted.items() if name not in environment}


def plugin_path(environment: Mapping[str, str], root: Path = Path("/")) -> Path | None:
    """The path of the aws-ofi-nccl library that NCCL finds as `ofi`; None if there is none, or only an older one."""
    folders = [root / folder for folder in _PLUGIN_DIRS]
    folders += [root / folder.lstrip("/") for folder in _library_path(environment)]
    return next((folder / _PLUGIN for folder in folders if (folder / _PLUGIN).exists()), None)


def _library_path(environment: Mapping[str, str]) -> Iterable[str]:
    return filter(None, environment.get("LD_LIBRARY_PATH", "").split(":"))


def _vendor(device: Path) -> str:
    try:
        return (device / "device" / "vendor").read_text().strip()
    except OSError:
        return ""
