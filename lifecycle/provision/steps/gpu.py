"""Software for GPUs other than NVIDIA's driver: NCCL for programs without torch, nccl-tests, GDRCopy."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from lifecycle.provision import apt
from lifecycle.provision.step import ProvisionedNode, Step, StepError
from lifecycle.versions import Pinned, pin, table

_CUDA = "/usr/local/cuda"
_BUILD_S = 1800.0


class Nccl(Step):
    """Installs NVIDIA's NCCL packages in the version that torch was built with, from NVIDIA's repository."""

    name = "nccl"

    def goal(self, node: ProvisionedNode) -> str:
        return f"installed: {' '.join(self._packages(node))}" if node.site.torch else "the NCCL of torch"

    def skip(self, node: ProvisionedNode) -> str:
        if not node.has_gpu:
            return "no NVIDIA GPU here"
        return "" if node.site.torch else "no `torch` in node.yaml, which selects the version; torch has its own NCCL"

    def is_done(self, node: ProvisionedNode) -> bool:
        return not apt.missing(node, self._packages(node))

    def apply(self, node: ProvisionedNode) -> None:
        apt.install(node, self._packages(node))

    def _packages(self, node: ProvisionedNode) -> tuple[str, ...]:
        pinned: Pinned = pin(node.site.torch)
        return tuple(f"{name}={pinned.nccl}-1+cuda{pinned.cuda}" for name in ("libnccl2", "libnccl-dev"))


class NcclTests(Step):
    """Builds nccl-tests, for sbatch_templates/nccl_tests.sbatch and for use by hand."""

    name = "nccl-tests"
    _home = "/opt/nccl-tests"

    def goal(self, node: ProvisionedNode) -> str:
        return f"{self._home}: nccl-tests {_version('nccl-tests')}"

    def skip(self, node: ProvisionedNode) -> str:
        if not node.has_gpu:
            return "no NVIDIA GPU here"
        if not node.site.nccl_tests:
            return "`nccl_tests: false` in node.yaml"
        return "" if node.path(_CUDA).exists() else f"no CUDA toolkit in {_CUDA} to build it with"

    def is_done(self, node: ProvisionedNode) -> bool:
        program = node.path(f"{self._home}/build/all_reduce_perf")
        return program.exists() and node.text(f"{self._home}/VERSION").strip() == _version("nccl-tests")

    def apply(self, node: ProvisionedNode) -> None:
        mpi = "/opt/amazon/openmpi"
        with_mpi = ("MPI=1", f"MPI_HOME={mpi}") if node.path(mpi).exists() else ("MPI=0",)
        _build(node, "nccl-tests", self._home, ("make", f"-j{os.cpu_count()}", f"CUDA_HOME={_CUDA}", *with_mpi))


class GdrCopy(Step):
    """Builds GDRCopy's library, with which aws-ofi-nccl accesses GPU memory. Its kernel module is a package."""

    name = "gdrcopy"
    _library = "/usr/local/lib/libgdrapi.so"
    _mark = "/opt/gdrcopy"

    def goal(self, node: ProvisionedNode) -> str:
        return f"{self._library}: GDRCopy {_version('gdrcopy')}"

    def skip(self, node: ProvisionedNode) -> str:
        if not node.has_gpu:
            return "no NVIDIA GPU here"
        return "" if node.path(_CUDA).exists() else f"no CUDA toolkit in {_CUDA} to build it with"

    def is_done(self, node: ProvisionedNode) -> bool:
        return node.path(self._library).exists() and node.text(f"{self._mark}/VERSION").strip() == _version("gdrcopy")

    def apply(self, node: ProvisionedNode) -> None:
        _build(node, "gdrcopy", self._mark, ("make", "prefix=/usr/local", f"CUDA={_CUDA}", "lib", "lib_install"))
        node.run(("ldconfig",), timeout_s=120)

    def verify(self, node: ProvisionedNode) -> None:
        super().verify(node)
        if not node.in_container and "gdrdrv" not in node.text("/proc/modules"):
            raise StepError(
                "kernel module gdrdrv: not loaded, but GDRCopy's library needs it; install gdrdrv-dkms from NVIDIA's "
                "repository and `modprobe gdrdrv`, then run again"
            )


def _version(artifact: str) -> str:
    return str(table()["artifacts"][artifact]["version"])


def _build(node: ProvisionedNode, artifact: str, home: str, make: tuple[str, ...]) -> None:
    """Unpack and build a source archive in a temporary directory next to `home`. Rename it to `home` at the end."""
    archive = node.fetch(artifact)
    place = node.path(home)
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{artifact}-", dir=place.parent) as folder:
        node.run(("tar", "-xzf", str(archive), "-C", folder, "--strip-components=1"), timeout_s=300)
        node.run(make, cwd=folder, timeout_s=_BUILD_S)
        (Path(folder) / "VERSION").write_text(_version(artifact) + "\n")
        os.chmod(folder, 0o755)
        if place.exists():
            node.run(("rm", "-rf", "--one-file-system", str(place)))
        os.rename(folder, place)
        os.mkdir(folder)  # TemporaryDirectory expects it at its exit
