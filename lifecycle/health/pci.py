"""Devices on the PCI bus, which lists them even if their driver does not."""

from __future__ import annotations

from collections.abc import Sequence

from lifecycle.health.check import CheckedNode

_NVIDIA, _AMAZON = "0x10de", "0x1d0f"
_DISPLAY_CLASSES = ("0x0300", "0x0302")  # VGA and 3D controllers; GPUs of servers are the latter
_EFA_PREFIX = "0xefa"
_ALL_ONES = b"\xff" * 64  # the header, which every user may read; lspci shows such a device with "rev ff"


def nvidia_gpus(node: CheckedNode) -> list[str]:
    """PCI addresses of NVIDIA's GPUs."""
    return [
        address
        for address, facts in _devices(node).items()
        if facts["vendor"] == _NVIDIA and facts["class"][:6] in _DISPLAY_CLASSES
    ]


def unanswering(node: CheckedNode, addresses: Sequence[str]) -> list[str]:
    """Devices whose configuration space reads as all ones: the bus answers so for a device that does not answer.

    `vendor` and the other files of sysfs are the kernel's memory of the device, so they stay.
    """
    return [address for address in addresses if _head(node, address) == _ALL_ONES]


def efa_interfaces(node: CheckedNode) -> list[str]:
    """PCI addresses of EFA interfaces."""
    return [
        address
        for address, facts in _devices(node).items()
        if facts["vendor"] == _AMAZON and facts["device"].startswith(_EFA_PREFIX)
    ]


def _head(node: CheckedNode, address: str) -> bytes:
    try:
        with node.path(f"/sys/bus/pci/devices/{address}/config").open("rb", buffering=0) as file:
            return file.read(len(_ALL_ONES))
    except OSError:  # the device was removed
        return b""


def _devices(node: CheckedNode) -> dict[str, dict[str, str]]:
    return node.once(_read)


def _read(node: CheckedNode) -> dict[str, dict[str, str]]:
    devices = {}
    for path in sorted(node.path("/sys/bus/pci/devices").glob("*")):
        try:
            devices[path.name] = {key: (path / key).read_text().strip() for key in ("vendor", "device", "class")}
        except OSError:  # the device was removed
            continue
    return devices
