"""The interface of a step, and of the node that a step works on."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from holdfast.base.files import publish
from lifecycle.errors import LifecycleError
from lifecycle.instance import expected, instance_type
from lifecycle.provision.site import Site
from slurm.command import CommandRunner


class StepError(LifecycleError):
    """A step failed, or its result is missing although it succeeded. The message says what to do."""


class Fetcher(Protocol):
    """Downloads a file that a step installs. `Fetch` implements it."""

    def __call__(self, artifact: str, version: str = "", sha256: str = "") -> Path:
        """Return the path of the complete and verified file.

        Args:
            artifact: name of the file in versions.yaml.
            version: its version; "": the version in versions.yaml.
            sha256: its checksum in hexadecimal digits; "": the one in versions.yaml. One in node.yaml overrides it.

        Raises:
            StepError: the file cannot be downloaded, has no pinned checksum, or does not match the checksum.
        """


@dataclass(frozen=True, kw_only=True)
class ProvisionedNode:
    """The node that is provisioned.

    Attributes:
        root: the root of its file system; "/" except in tests.
        site: the site's settings for this node.
        run: runs a program on the node.
        fetch: downloads a pinned file.
    """

    root: Path
    site: Site
    run: CommandRunner
    fetch: Fetcher

    def path(self, absolute: str) -> Path:
        """The path of a node's file below `root`."""
        return self.root / absolute.lstrip("/")

    def text(self, absolute: str) -> str:
        """The text of a file; "" if there is no such file."""
        try:
            return self.path(absolute).read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def write(self, absolute: str, text: str, mode: int = 0o644) -> None:
        """Write a file durably. Does nothing if the file has this text already."""
        if self.text(absolute) != text:
            publish(self.path(absolute), text.encode(), mode)

    def mounted(self, mount_point: str) -> str:
        """The source of the topmost mount at a mount point; "" if nothing is mounted there.

        A row of autofs does not count: systemd mounts the file system there at its first use (x-systemd.automount).
        """
        rows = [line.split()[:3] for line in self.text("/proc/mounts").splitlines()]
        sources = [source for source, at, kind in rows if at == mount_point and kind != "autofs"]
        return sources[-1] if sources else ""

    @property
    def instance(self) -> str:
        """The EC2 instance type from node.yaml, else from the firmware; "" if the machine is no EC2 instance."""
        return self.site.instance or instance_type(self.root) or ""

    @property
    def efa_devices(self) -> int:
        """The number of EFA interfaces of this instance type; for an unknown type, of those the kernel lists."""
        row = expected(self.instance)
        if row is not None:
            return row.efa
        drivers = self.path("/sys/class/infiniband").glob("*/device/driver")
        return sum(os.path.basename(os.path.realpath(driver)) == "efa" for driver in drivers)

    @property
    def has_gpu(self) -> bool:
        """Whether NVIDIA's driver is loaded, or this instance type has GPUs."""
        row = expected(self.instance)
        return self.path("/proc/driver/nvidia").exists() or bool(row and row.gpus)

    @property
    def in_container(self) -> bool:
        """Whether this is a container. Its host then sets up the kernel, the modules and the mounts."""
        marks = ("/.dockerenv", "/run/.containerenv", "/.singularity.d")
        if self.site.container is not None:
            return self.site.container
        return any(self.path(mark).exists() for mark in marks)

    @property
    def has_systemd(self) -> bool:
        """Whether the machine was booted with systemd; the same test as sd_booted(3)."""
        return self.path("/run/systemd/system").is_dir()


class Step(ABC):
    """One part of provisioning, such as the packages or the local disk.

    The methods are called in the order skip, is_done, apply, verify. Only `apply` changes the node. `apply` may be
    killed at any point. The next run then calls it again, even if `is_done` is true. It must do only what is missing.
    """

    name: str

    @abstractmethod
    def goal(self, node: ProvisionedNode) -> str:
        """The state of the node after the step, as one line of the plan."""

    def skip(self, node: ProvisionedNode) -> str:
        """The reason why the step does not apply to this node; "" if it applies."""
        return ""

    def fetches(self, node: ProvisionedNode) -> Sequence[tuple[str, ...]]:
        """The files that `apply` may download, each as the arguments of a `Fetcher`."""
        return ()

    @abstractmethod
    def is_done(self, node: ProvisionedNode) -> bool:
        """Whether the node has the state of `goal`. Inspects the node and reads no record."""

    @abstractmethod
    def apply(self, node: ProvisionedNode) -> None:
        """Bring the node to the state of `goal`.

        Raises:
            StepError, CommandError, OSError: the step failed.
        """

    def verify(self, node: ProvisionedNode) -> None:
        """Check the result of `apply`.

        Raises:
            StepError: the node does not have the state of `goal`.
        """
        if not self.is_done(node):
            raise StepError(
                f"{self.name}: the step ended without an error, but its result is missing, expected "
                f"{self.goal(node)}; see the log of provisioning"
            )
