"""Which versions of torch, NCCL, aws-ofi-nccl, EFA installer and libfabric belong together (versions.yaml)."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from holdfast.settings.yaml_file import read_yaml
from lifecycle.errors import NodeUsageError

_TABLE = Path(__file__).with_name("versions.yaml")
_DEB_ARCH = {"x86_64": "amd64", "aarch64": "arm64"}


class VersionError(NodeUsageError):
    """The table has no set for the requested version, or a version is malformed."""


@dataclass(frozen=True, kw_only=True)
class Installed:
    """The versions on a node or in an image; "" for a missing or unknown part.

    Attributes:
        torch: `torch.__version__`, with a local part such as +cu128.
        torch_nccl: `torch.cuda.nccl.version()`.
        system_nccl: version of a libnccl outside torch's wheel that the loader would find first.
        plugin: version of aws-ofi-nccl.
        libfabric: version that `fi_info --version` prints.
        efa: version of the EFA installer (/opt/amazon/efa_installed_packages).
    """

    torch: str = ""
    torch_nccl: str = ""
    system_nccl: str = ""
    plugin: str = ""
    libfabric: str = ""
    efa: str = ""


@dataclass(frozen=True, kw_only=True)
class Pinned:
    """A set that belongs together.

    Attributes:
        torch: "" if no torch was named.
        cuda: CUDA version of that torch's wheel from PyPI; "" without torch.
        nccl: NCCL version of that torch.
        efa: version of the EFA installer.
        plugin: aws-ofi-nccl's version in that installer.
        libfabric: libfabric's version in that installer.
        efa_sha256: checksum of the installer's file; "" if the table has none and the site has to name it.
    """

    torch: str
    cuda: str
    nccl: str
    efa: str
    plugin: str
    libfabric: str
    efa_sha256: str


@dataclass(frozen=True, kw_only=True)
class PinnedFile:
    """A file that provisioning fetches.

    Attributes:
        artifact: its name in the table, and under `sha256` in node.yaml.
        url: the publisher's URL; a mirror has the file under the last part of it.
        sha256: checksum; "" if the table has none and the site has to name it.
    """

    artifact: str
    url: str
    sha256: str

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[1]


@dataclass(frozen=True, kw_only=True)
class VersionsVerdict:
    """The set of versions to have, and why the installed ones do not work together (empty: they do)."""

    pinned: Pinned
    conflicts: tuple[str, ...]


def table() -> dict[str, Any]:
    """versions.yaml, parsed."""
    return _load()


def ordered(version: str) -> tuple[int, ...]:
    """A version as numbers to compare. Of "2.1.0amzn5.0" and "2.9.1+cu128", the part before the letters counts.

    Raises:
        VersionError: it does not begin with a number.
    """
    found = re.match(r"v?(\d+(?:\.\d+)*)", version.strip())
    if not found:
        raise VersionError(f"got version {version!r}, expected one that begins with numbers, such as 2.27.5")
    numbers = [int(part) for part in found[1].split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def pin(torch: str = "", efa: str = "") -> Pinned:
    """The set to install.

    Args:
        torch: its version; "" keeps the installed NCCL.
        efa: an installer's version; "" takes the newest with a known checksum.

    Raises:
        VersionError: the table does not have them; the message lists those that it has.
    """
    built = _of_torch(torch) if torch else {"cuda": "", "nccl": ""}
    installers: Mapping[str, Mapping[str, str]] = table()["efa"]
    chosen = efa or next(version for version, row in installers.items() if row.get("sha256"))
    if chosen not in installers:
        raise VersionError(f"EFA installer: got {chosen!r}, expected one of {', '.join(installers)} (versions.yaml)")
    row = installers[chosen]
    return Pinned(
        torch=torch.partition("+")[0],
        cuda=built["cuda"],
        nccl=built["nccl"],
        efa=chosen,
        plugin=row["plugin"],
        libfabric=row["libfabric"],
        efa_sha256=row.get("sha256", ""),
    )


def pinned_file(artifact: str, version: str = "", sha256: str = "") -> PinnedFile:
    """A file for this machine's architecture.

    Args:
        artifact: its name in the table.
        version: "" takes the table's.
        sha256: of that version; "" takes the table's.
    """
    row = table()["artifacts"][artifact]
    arch = platform.machine()
    words = {"version": version or row.get("version", ""), "arch": arch, "deb_arch": _DEB_ARCH.get(arch, arch)}
    return PinnedFile(artifact=artifact, url=row["url"].format(**words), sha256=sha256 or row.get("sha256", ""))


def pinned_files(efa: str = "") -> list[PinnedFile]:
    """All files that provisioning may download, with this EFA installer; "" takes the newest with a known checksum.

    Raises:
        VersionError: the table has no such installer.
    """
    installer = pin(efa=efa)
    return [
        pinned_file(name, installer.efa, installer.efa_sha256) if name == "efa" else pinned_file(name)
        for name in table()["artifacts"]
    ]


def resolve(installed: Installed, efa: str = "") -> VersionsVerdict:
    """Whether the installed versions belong together, and the set that does.

    Raises:
        VersionError: the table does not have this torch, and its NCCL is unknown.
    """
    known = installed.torch.partition("+")[0] in table()["torch"]
    if installed.torch and not known and not installed.torch_nccl:
        _of_torch(installed.torch)
    pinned = pin(installed.torch if known else "", efa)
    if installed.torch_nccl:
        pinned = Pinned(**{**vars(pinned), "torch": installed.torch.partition("+")[0], "nccl": installed.torch_nccl})
    return VersionsVerdict(pinned=pinned, conflicts=tuple(_conflicts(installed, pinned)))


def _conflicts(installed: Installed, pinned: Pinned) -> list[str]:
    rules = table()["rules"]
    found = []
    nccl = installed.torch_nccl or pinned.nccl
    if nccl and ordered(nccl) < ordered(rules["nccl_min"]):
        found.append(
            f"NCCL {nccl}: aws-ofi-nccl needs {rules['nccl_min']} or newer; NCCL would use sockets; a newer torch"
        )
    if installed.system_nccl and nccl and ordered(installed.system_nccl) != ordered(nccl):
        found.append(
            f"system NCCL {installed.system_nccl} shadows the NCCL {nccl} that torch was built with; "
            f"take it off LD_LIBRARY_PATH, or install {nccl}"
        )
    if installed.plugin and ordered(installed.plugin) <= ordered(rules["plugin_simple_only"]):
        found.append(
            f"aws-ofi-nccl {installed.plugin}: up to {rules['plugin_simple_only']} it needs NCCL_PROTO=simple, "
            f"or results are wrong; install EFA installer {pinned.efa} (plugin {pinned.plugin})"
        )
    elif installed.plugin and ordered(installed.plugin) < ordered(rules["plugin_min"]):
        found.append(
            f"aws-ofi-nccl {installed.plugin} is older than {rules['plugin_min']}; install EFA installer {pinned.efa}"
        )
    if installed.plugin and installed.libfabric and ordered(installed.libfabric) < ordered(rules["libfabric_min"]):
        found.append(
            f"libfabric {installed.libfabric}: aws-ofi-nccl {installed.plugin} needs {rules['libfabric_min']} or "
            f"newer; install EFA installer {pinned.efa} (libfabric {pinned.libfabric})"
        )
    if installed.efa and not installed.plugin:
        found.append(f"EFA installer {installed.efa} is there and aws-ofi-nccl is not: NCCL would use sockets")
    return found


def _of_torch(torch: str) -> Mapping[str, str]:
    known: Mapping[str, Mapping[str, str]] = table()["torch"]
    release = torch.partition("+")[0]
    if release not in known:
        near = [version for version in known if ordered(version)[:2] == ordered(release)[:2]]
        hint = f"; the table has {near[0]}" if near else ""
        raise VersionError(f"torch: got {torch!r}, expected one of {', '.join(known)} (versions.yaml){hint}")
    return known[release]


@cache
def _load() -> dict[str, Any]:
    return dict(read_yaml(_TABLE, "a table"))
