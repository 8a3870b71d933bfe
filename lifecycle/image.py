"""Training images with EFA: a Dockerfile or an Apptainer definition with the versions that belong together.

Amazon's installer and Holdfast's wheel are verified against their checksums before they are used. The image has no
kernel module: the host has it. The build ends with a check of torch's NCCL. The text is the same for the same request.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from lifecycle.errors import NodeUsageError
from lifecycle.versions import Pinned, VersionError, pin, table

KINDS = ("docker", "apptainer")
_LOADER = "/etc/ld.so.conf.d/ofi-nccl.conf"
_TORCH_INDEX = "https://download.pytorch.org/whl/cu{cuda}"
_WHEEL_NAME = re.compile(r"holdfast_hpc-[0-9][A-Za-z0-9.+]*-py3-none-any\.whl")


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """The wheel of Holdfast in an image: its file name, which has the version, and its checksum."""

    name: str
    sha256: str

    @classmethod
    def of(cls, path: Path) -> Wheel:
        """Reads the wheel in a file.

        Raises:
            UsageError: the file cannot be read, or its name is not that of a wheel of Holdfast.
        """
        if not _WHEEL_NAME.fullmatch(path.name):
            raise NodeUsageError(f"--wheel: got {path.name!r}, expected holdfast_hpc-VERSION-py3-none-any.whl")
        try:
            return cls(name=path.name, sha256=hashlib.sha256(path.read_bytes()).hexdigest())
        except OSError as error:
            raise NodeUsageError(
                f"--wheel: {path}: {error.strerror}; make it with `pip wheel --no-deps TREE`"
            ) from error


@dataclass(frozen=True, kw_only=True)
class Image:
    """The contents of a training image.

    Attributes:
        base: the base image, Debian or Ubuntu. It needs no CUDA runtime, because torch's wheels have it.
        pinned: the versions.
        wheel: the wheel of Holdfast.
    """

    base: str
    pinned: Pinned
    wheel: Wheel

    @classmethod
    def of(cls, torch: str, wheel: Path, efa: str = "", base: str = "ubuntu:24.04") -> Image:
        """The image for a torch and a wheel of Holdfast.

        Raises:
            VersionError: the table lacks that torch, or the checksum of that EFA installer.
            UsageError: the wheel cannot be read.
        """
        pinned = pin(torch, efa)
        if not pinned.efa_sha256:
            raise VersionError(
                f"EFA installer {pinned.efa}: versions.yaml has no checksum of it, and an image is not built from what "
                "is not verified; add its sha256 there, or take the default"
            )
        return cls(base=base, pinned=pinned, wheel=Wheel.of(wheel))

    def docker(self) -> str:
        """A Dockerfile."""
        return self._render("docker.j2")

    def apptainer(self) -> str:
        """An Apptainer (Singularity) definition."""
        return self._render("apptainer.j2")

    def _render(self, recipe: str) -> str:
        import jinja2  # here: only `node image` needs it

        recipes = jinja2.Environment(
            loader=jinja2.FileSystemLoader(Path(__file__).with_name("recipes")),
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            keep_trailing_newline=True,
            autoescape=False,  # the recipes are shell, not HTML
        )
        return recipes.get_template(recipe).render(
            comment=self._comment(),
            base=self.base,
            wheel=self.wheel.name,
            steps=self._steps(),
            environment=self._environment(),
        )

    def _comment(self) -> str:
        p = self.pinned
        return (
            f"# torch {p.torch} (CUDA {p.cuda}, NCCL {p.nccl}); EFA installer {p.efa} "
            f"(libfabric {p.libfabric}, aws-ofi-nccl {p.plugin})"
        )

    def _steps(self) -> list[list[str]]:
        """Groups of shell commands; one group is one layer of a Docker image."""
        p = self.pinned
        url = table()["artifacts"]["efa"]["url"].format(version=p.efa)
        wheels = _TORCH_INDEX.format(cuda=p.cuda.replace(".", ""))
        return [
            [
                "apt-get update",
                "apt-get install -y --no-install-recommends ca-certificates curl pciutils python3 python3-venv",
                "python3 -m venv /opt/venv",
            ],
            [
                f"curl -fsSL --retry 5 -o /tmp/efa.tar.gz {url}",
                f"echo '{p.efa_sha256}  /tmp/efa.tar.gz' | sha256sum -c -",
                "tar -xzf /tmp/efa.tar.gz -C /tmp",
                "(cd /tmp/aws-efa-installer && ./efa_installer.sh -y --skip-kmod --skip-limit-conf --no-verify)",
                f"find /opt/amazon/ofi-nccl -name 'libnccl-net*.so' -printf '%h\\n' | sort -u > {_LOADER}",
                f"test -s {_LOADER}",
                "ldconfig",
                "rm -rf /tmp/efa.tar.gz /tmp/aws-efa-installer /var/lib/apt/lists/*",
            ],
            [
                f"/opt/venv/bin/pip install --no-cache-dir torch=={p.torch} --index-url {wheels}",
                f"echo '{self.wheel.sha256}  /tmp/{self.wheel.name}' | sha256sum -c -",
                f"/opt/venv/bin/pip install --no-cache-dir /tmp/{self.wheel.name}",
                f"rm /tmp/{self.wheel.name}",
                f'/opt/venv/bin/python -c "import torch; assert torch.cuda.nccl.version() == {_as_tuple(p.nccl)}"',
            ],
        ]

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": "/opt/venv/bin:/opt/amazon/efa/bin:/opt/amazon/openmpi/bin:$PATH",
            # NCCL ends with an error where EFA cannot be used; without these it trains over sockets, 20 times slower.
            "NCCL_NET_PLUGIN": "ofi",
            "NCCL_NET": "Libfabric",
            "NCCL_SOCKET_IFNAME": "^docker,lo,veth",
        }


def _as_tuple(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
