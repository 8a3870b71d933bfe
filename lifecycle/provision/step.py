"""What a step is, and the node as a step sees it."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lifecycle.errors import LifecycleError
from lifecycle.files import publish
from lifecycle.instance import expected, instance_type
from lifecycle.provision.site import Site
from slurm.command import CommandRunner


class StepError(LifecycleError):
    """A step cannot do its work, or did it and the node is still not as it should be. The message says what to do."""


class Fetcher(Protocol):
    """How a step gets a file that is not on the node. `Fetch` is the real one."""

    def __call__(self, artifact: str, version: str = "", sha256: str = "") -> Path:
        """The file, whole and verified.

        Args:
            artifact: its name in versions.yaml.
            version: "" takes the table's.
            sha256: "" takes the site's, else the table's.

        Raises:
            StepError: it is not there, not pinned, or not what was pinned.
        """


@dataclass(frozen=True, kw_only=True)
class ProvisionedNode:
    """The node that is provisioned.

    Attributes:
        root: "/" but in tests.
        site: what it should be.
        run: runs a program.
        fetch: gets a pinned file.
    """

    root: Path
    site: Site
    run: CommandRunner
    fetch: Fetcher

    def path(self, absolute: str) -> Path:
        """Where a file of the node is."""
        return self.root / absolute.lstrip("/")

    def text(self, absolute: str) -> str:
        """A file's text; "" where there is none."""
        try:
            return self.path(absolute).read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def write(self, absolute: str, text: str, mode: int = 0o644) -> None:
        """Make a file say this, durably; one that does already is not touched."""
        if self.text(absolute) != text:
            publish(self.path(absolute), text.encode(), mode)

    def mounted(self, mount_point: str) -> str:
        """The source that is mounted there, the last one on top; "" where nothing is."""
        sources = [line.split()[0] for line in self.text("/proc/mounts").splitlines() if line.split()[1] == mount_point]
        return sources[-1] if sources else ""

    @property
    def instance(self) -> str:
        """The instance type: what the site says, else the firmware; "" on a machine that is no EC2 instance."""
        return self.site.instance or instance_type(self.root) or ""

    @property
    def efa_devices(self) -> int:
        """EFA interfaces this machine type has, or, on an unknown one, that the kernel shows."""
        row = expected(self.instance)
        if row is not None:
            return row.efa
        drivers = self.path("/sys/class/infiniband").glob("*/device/driver")
        return sum(os.path.basename(os.path.realpath(driver)) == "efa" for driver in drivers)

    @property
    def has_gpu(self) -> bool:
        """Whether NVIDIA's driver runs here, or this machine type has GPUs."""
        row = expected(self.instance)
        return self.path("/proc/driver/nvidia").exists() or bool(row and row.gpus)

    @property
    def in_container(self) -> bool:
        """Whether this is a container: the kernel, its modules and its mounts are then somebody else's."""
        marks = ("/.dockerenv", "/run/.containerenv", "/.singularity.d")
        if self.site.container is not None:
            return self.site.container
        return any(self.path(mark).exists() for mark in marks)

    @property
    def has_systemd(self) -> bool:
        """Whether systemd runs here (sd_booted(3))."""
        return self.path("/run/systemd/system").is_dir()


class Step(ABC):
    """One subject that provisioning puts right.

    Called in the order skip, is_done, apply, verify; all but `apply` change nothing. `apply` may be killed at any
    point: it is called again then, also where `is_done` would already say yes. It has to do only what is missing.
    """

    name: str

    @abstractmethod
    def goal(self, node: ProvisionedNode) -> str:
        """What the node has afterwards; one line of the plan."""

    def skip(self, node: ProvisionedNode) -> str:
        """Why this node needs no such step; "" where it does."""
        return ""

    def fetches(self, node: ProvisionedNode) -> Sequence[tuple[str, ...]]:
        """What `apply` may fetch, each as `Fetcher` takes it."""
        return ()

    @abstractmethod
    def is_done(self, node: ProvisionedNode) -> bool:
        """Whether the node is already so: looked at, not remembered."""

    @abstractmethod
    def apply(self, node: ProvisionedNode) -> None:
        """Make it so.

        Raises:
            StepError, CommandError, OSError: it cannot.
        """

    def verify(self, node: ProvisionedNode) -> None:
        """Make sure that it is so.

        Raises:
            StepError: it is not.
        """
        if not self.is_done(node):
            raise StepError(f"{self.name}: applied without an error, and still not so: {self.goal(node)}")
