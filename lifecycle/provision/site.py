"""/etc/holdfast/node.yaml: what this site's nodes should be. Every key is optional, and so is the file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lifecycle.settings.keys import key
from lifecycle.settings.validation import got, validated
from lifecycle.versions import table

SITE_FILE = Path("/etc/holdfast/node.yaml")

_MOUNT = {"pattern": r"^(/([A-Za-z0-9_-][A-Za-z0-9._-]*|\.[A-Za-z0-9_-][A-Za-z0-9._-]*))+$",
          "expected": "an absolute path without spaces"}  # fmt: skip
_WORD = {"pattern": r"^[^\s,#\\]+$", "expected": "a word without spaces and commas"}  # of fstab
_WORD_OR_NOTHING = {**_WORD, "pattern": r"^[^\s,#\\]*$"}


@dataclass(frozen=True, kw_only=True)
class NvmeSite:
    """The node's own disks."""

    mount: str = key("Where they are mounted.", default="/local", **_MOUNT, example="/scratch")
    fs: Literal["xfs", "ext4"] = key("Their file system.", default="xfs", example="ext4")
    devices: tuple[str, ...] = key(
        "The disks; without it, EC2's instance store by its model, and no others.",
        default=(),
        expected="a path below /dev",
        example="[/dev/nvme1n1]",
    )

    def _has_devices_below_dev(self, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        for device in self.devices:
            if not device.startswith("/dev/"):
                yield "devices", got(device, "paths below /dev")

    rules = (_has_devices_below_dev,)


@dataclass(frozen=True, kw_only=True)
class Fsx:
    """A Lustre file system."""

    dns: str = key("Its DNS name.", **_WORD, example="fs-0123.fsx.us-east-1.amazonaws.com")
    mountname: str = key("Its mount name.", **_WORD, example="abcdef12")
    mount: str = key("Where it is mounted.", default="/fsx", **_MOUNT, example="/lustre")
    stripe_count: int | None = key(
        "Storage targets that a new file is cut over; -1 is all of them.", default=None, unit="targets", example=-1
    )


@dataclass(frozen=True, kw_only=True)
class BucketSite:
    """An S3 bucket as a directory, read through a cache on the node's own disk."""

    bucket: str = key("Its name.", **_WORD, example="training-data")
    mount: str = key("Where it is mounted.", **_MOUNT, example="/data")
    prefix: str = key("Only what is below this prefix.", default="", **_WORD_OR_NOTHING, example="imagenet/")
    cache: str = key("Directory of the cache.", default="", **_WORD_OR_NOTHING, example="/local/cache")
    cache_mib: int = key("Size of the cache.", default=102400, unit="MiB", example=51200)
    read_only: bool = key("Whether it can only be read.", default=True, example=False)


@dataclass(frozen=True, kw_only=True)
class SlurmSite:
    """Slurm's daemon on the node."""

    conf_server: str = key(
        "host[:port] of slurmctld, where the node gets slurm.conf from it (configless).", default="", example="ctl:6817"
    )
    munge_key: str = key("Path of munge's key, to be copied.", default="", example="/fsx/munge.key")
    install: bool = key("Whether Slurm is installed.", default=False, example=True)
    start: bool = key(
        "Whether slurmd is enabled and started; false where something else does that later (ParallelCluster).",
        default=True,
        example=False,
    )


@dataclass(frozen=True, kw_only=True)
class User:
    """A user, the same on all nodes."""

    name: str = key(
        "The user's name.",
        pattern="^[a-z_][a-z0-9_-]{0,31}$",
        expected="a name of lower-case letters, digits, _ and -",
        example="ada",
    )
    uid: int = key("The user's number.", ge=1000, example=2001)
    gid: int | None = key("The group's number; without it, the user's.", default=None, example=2001)
    home: str = key("The home directory; without it, the system's choice.", default="", example="/fsx/home/ada")


@dataclass(frozen=True, kw_only=True)
class Site:
    """What this site's nodes should be."""

    instance: str = key("The machine's type where its firmware does not say it.", default="", example="p5.48xlarge")
    role: Literal["compute", "controller", "login"] = key("What the node is.", default="compute", example="login")
    container: bool | None = key(
        "Whether a container image is made, not a machine; without it, provisioning looks.", default=None, example=True
    )
    torch: str = key("The torch that jobs use; it chooses the NCCL of nccl-tests.", default="", example="2.13.0")
    efa: str = key("Version of the EFA installer; without it, the newest that is pinned.", default="", example="1.50.0")
    packages: tuple[str, ...] = key("Further packages.", default=(), expected="a package's name", example="[htop]")
    memlock: str = key(
        "Memory that a process may lock, for every user.",
        default="unlimited",
        pattern=r"^(unlimited|[0-9]+)$",
        expected="unlimited or KiB",
        unit="KiB",
        example=67108864,
    )
    nofile: int = key("Files that a process may have open.", default=1048576, ge=1024, unit="files", example=65536)
    huge_pages: int = key(
        "Pages of 2 MiB to reserve; 0 leaves them as they are.", default=0, ge=0, unit="pages", example=5128
    )
    shm_size: str = key(
        "Size of /dev/shm, as tmpfs takes it.",
        default="80%",
        pattern=r"^[0-9]+[kmgKMG%]?$",
        expected="such as 80% or 512G",
        example="512G",
    )
    ntp: tuple[str, ...] = key(
        "Time servers; without it, EC2's own on EC2, else the distribution's.",
        default=(),
        expected="a host's name",
        example="[ntp.example.org]",
    )
    mirror: str = key(
        "A directory or s3://bucket/prefix that has the pinned files.",
        default="",
        pattern="^(|/.*|s3://.*)$",
        expected="a directory's path or s3://",
        example="s3://bucket/mirror",
    )
    sha256: Mapping[str, str] = key(
        "Sums of pinned files by name, where versions.yaml has none.",
        default={},
        expected="64 hexadecimal digits",
        example="{efa: fa6d...}",
    )
    enroot: bool = key("Whether containers (enroot, pyxis) are installed.", default=False, example=True)
    nccl_tests: bool = key("Whether nccl-tests are built.", default=True, example=False)
    nvme: NvmeSite = key("The node's own disks.", default=NvmeSite())
    fsx: Fsx | None = key("A Lustre file system.", default=None)
    s3: tuple[BucketSite, ...] = key("Buckets that are mounted.", default=())
    slurm: SlurmSite = key("Slurm's daemon.", default=SlurmSite())
    users: tuple[User, ...] = key("Users, the same on all nodes.", default=())

    @classmethod
    def from_mapping(cls, found: Any, where: str) -> Site:
        """The site that a mapping describes.

        Args:
            found: keys and values.
            where: what errors call the place that it is from.

        Raises:
            UsageError: one line for each unknown or missing key, wrong type or value.
        """
        return validated(cls, found, source=where)

    def _mounts_are_distinct(self, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        mounts = [self.nvme.mount, *(bucket.mount for bucket in self.s3), *([self.fsx.mount] if self.fsx else [])]
        if len(set(mounts)) != len(mounts):
            yield "nvme.mount", got(mounts, "each mount used once")

    def _sums_are_of_artifacts(self, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        known = tuple(table()["artifacts"])
        for artifact, sum_ in self.sha256.items():
            if artifact not in known:
                yield "sha256", got(artifact, f"one of {', '.join(known)}")
            elif not re.fullmatch(r"[0-9a-f]{64}", sum_):
                yield f"sha256.{artifact}", got(sum_, "64 hexadecimal digits")

    rules = (_mounts_are_distinct, _sums_are_of_artifacts)
