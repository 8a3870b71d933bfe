"""/etc/holdfast/node.yaml: the site's settings for its nodes. The file and each of its keys are optional."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from holdfast.settings.keys import key
from holdfast.settings.validation import got, validated
from lifecycle.versions import table

SITE_FILE = Path("/etc/holdfast/node.yaml")

_MOUNT = {"pattern": r"^(/([A-Za-z0-9_-][A-Za-z0-9._-]*|\.[A-Za-z0-9_-][A-Za-z0-9._-]*))+$",
          "expected": "an absolute path without spaces"}  # fmt: skip
_WORD = {"pattern": r"^[^\s,#\\]+$", "expected": "a word without spaces and commas"}  # fits one field of fstab
_WORD_OR_NOTHING = {**_WORD, "pattern": r"^[^\s,#\\]*$"}


@dataclass(frozen=True, kw_only=True)
class NvmeSite:
    """The node's local disks."""

    mount: str = key("Mount point of the local disks.", default="/local", **_MOUNT, example="/scratch")
    fs: Literal["xfs", "ext4"] = key("File system of the local disks.", default="xfs", example="ext4")
    devices: tuple[str, ...] = key(
        "The disks. Default: the disks of EC2's instance store, found by their model name, and no others.",
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

    dns: str = key("DNS name of the file system.", **_WORD, example="fs-0123.fsx.us-east-1.amazonaws.com")
    mountname: str = key("Mount name of the file system.", **_WORD, example="abcdef12")
    mount: str = key("Mount point.", default="/fsx", **_MOUNT, example="/lustre")
    stripe_count: int | None = key(
        "Number of storage targets that a new file is striped over; -1: all of them.",
        default=None,
        unit="targets",
        example=-1,
    )


@dataclass(frozen=True, kw_only=True)
class BucketSite:
    """An S3 bucket that is mounted as a directory, with a read cache on the node's local disk."""

    bucket: str = key("Name of the bucket.", **_WORD, example="training-data")
    mount: str = key("Mount point.", **_MOUNT, example="/data")
    prefix: str = key("Mounts only the objects below this prefix.", default="", **_WORD_OR_NOTHING, example="imagenet/")
    cache: str = key(
        "Directory of the cache. Default: a directory on the local disk.",
        default="",
        **_WORD_OR_NOTHING,
        example="/local/cache",
    )
    cache_mib: int = key("Size of the cache.", default=102400, unit="MiB", example=51200)
    read_only: bool = key("Whether the mount is read-only.", default=True, example=False)


@dataclass(frozen=True, kw_only=True)
class SlurmSite:
    """slurmd on the node."""

    conf_server: str = key(
        "host[:port] of slurmctld, if slurmd gets slurm.conf from there (configless Slurm).",
        default="",
        example="ctl:6817",
    )
    munge_key: str = key("Path of munge's key, which is copied to /etc/munge.", default="", example="/fsx/munge.key")
    install: bool = key("Whether provisioning installs Slurm's packages.", default=False, example=True)
    start: bool = key(
        "Whether provisioning enables and starts slurmd; false if another service does so later (ParallelCluster).",
        default=True,
        example=False,
    )


@dataclass(frozen=True, kw_only=True)
class User:
    """A user account, with the same uid on all nodes."""

    name: str = key(
        "The user's name.",
        pattern="^[a-z_][a-z0-9_-]{0,31}$",
        expected="a name of lower-case letters, digits, _ and -",
        example="ada",
    )
    uid: int = key("The user ID.", ge=1000, example=2001)
    gid: int | None = key("The group ID. Default: the same number as uid.", default=None, example=2001)
    home: str = key("The home directory. Default: /home/NAME.", default="", example="/fsx/home/ada")


@dataclass(frozen=True, kw_only=True)
class Site:
    """The site's settings for its nodes."""

    instance: str = key("The EC2 instance type, if the firmware does not state it.", default="", example="p5.48xlarge")
    role: Literal["compute", "controller", "login"] = key(
        "The node's role in the cluster.", default="compute", example="login"
    )
    container: bool | None = key(
        "Whether provisioning builds a container image instead of a machine. Default: detected.",
        default=None,
        example=True,
    )
    torch: str = key(
        "The torch version of the jobs. The NCCL packages are those that this torch was built with.",
        default="",
        example="2.13.0",
    )
    efa: str = key("Version of the EFA installer. Default: the newest pinned version.", default="", example="1.50.0")
    packages: tuple[str, ...] = key(
        "Additional packages of the distribution.", default=(), expected="a package's name", example="[htop]"
    )
    memlock: str = key(
        "Limit of locked memory of a process, for every user.",
        default="unlimited",
        pattern=r"^(unlimited|[0-9]+)$",
        expected="unlimited or KiB",
        unit="KiB",
        example=67108864,
    )
    nofile: int = key(
        "Limit of open files of a process, for every user.", default=1048576, ge=1024, unit="files", example=65536
    )
    huge_pages: int = key(
        "Number of huge pages of 2 MiB to reserve; 0 changes nothing.", default=0, ge=0, unit="pages", example=5128
    )
    shm_size: str = key(
        "Size of /dev/shm, in the notation of tmpfs(5).",
        default="80%",
        pattern=r"^[0-9]+[kmgKMG%]?$",
        expected="such as 80% or 512G",
        example="512G",
    )
    ntp: tuple[str, ...] = key(
        "NTP servers. Default: Amazon Time Sync on EC2, else the distribution's servers.",
        default=(),
        expected="a host's name",
        example="[ntp.example.org]",
    )
    mirror: str = key(
        "A directory or s3://bucket/prefix with the pinned files, used instead of their URLs.",
        default="",
        pattern="^(|/.*|s3://.*)$",
        expected="a directory's path or s3://",
        example="s3://bucket/mirror",
    )
    sha256: Mapping[str, str] = key(
        "SHA-256 checksums of pinned files, by their names in versions.yaml; these override the ones there.",
        default={},
        expected="64 hexadecimal digits",
        example="{efa: fa6d...}",
    )
    enroot: bool = key(
        "Whether provisioning installs enroot and pyxis, for containers in jobs.", default=False, example=True
    )
    nccl_tests: bool = key("Whether provisioning builds nccl-tests.", default=True, example=False)
    nvme: NvmeSite = key("The node's local disks.", default=NvmeSite())
    fsx: Fsx | None = key("A Lustre file system.", default=None)
    s3: tuple[BucketSite, ...] = key("S3 buckets to mount.", default=())
    slurm: SlurmSite = key("slurmd on the node.", default=SlurmSite())
    users: tuple[User, ...] = key("User accounts, with the same uid on all nodes.", default=())

    @classmethod
    def from_mapping(cls, found: Any, where: str) -> Site:
        """Validate the site's settings.

        Args:
            found: keys and values.
            where: the file or option that they come from, for errors.

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
