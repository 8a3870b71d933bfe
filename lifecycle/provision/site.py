"""/etc/holdfast/node.yaml: what this site's nodes should be. Every key is optional, and so is the file."""

from __future__ import annotations

import dataclasses
import difflib
import re
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lifecycle.errors import UsageError
from lifecycle.versions import table

SITE_FILE = Path("/etc/holdfast/node.yaml")
_WORD = re.compile(r"[^\s,#\\]+")  # of fstab
_NAME = re.compile(r"[a-z_][a-z0-9_-]{0,31}")


@dataclass(frozen=True, kw_only=True)
class Nvme:
    """The node's own disks. `devices` empty: EC2's instance store, told by its model; others are not guessed."""

    mount: str = "/local"
    fs: str = "xfs"
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Fsx:
    """A Lustre file system. `stripe_count` -1: over all of its targets."""

    dns: str
    mountname: str
    mount: str = "/fsx"
    stripe_count: int | None = None


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """An S3 bucket as a directory, read through a cache on the node's own disk."""

    bucket: str
    mount: str
    prefix: str = ""
    cache: str = ""
    cache_mib: int = 102400
    read_only: bool = True


@dataclass(frozen=True, kw_only=True)
class Slurm:
    """Slurm's daemon here. `conf_server`: host[:port] of slurmctld, where nodes get slurm.conf from it (configless).

    `start`: whether it is enabled and started here; not where something else does that afterwards (ParallelCluster).
    """

    conf_server: str = ""
    munge_key: str = ""
    install: bool = False
    start: bool = True


@dataclass(frozen=True, kw_only=True)
class User:
    """A user, the same on all nodes."""

    name: str
    uid: int
    gid: int | None = None
    home: str = ""


@dataclass(frozen=True, kw_only=True)
class Site:
    """What this site's nodes should be.

    Attributes:
        instance: the machine's type, where the firmware does not tell it.
        role: compute, controller or login.
        container: whether this is a container image that is made, not a machine; None looks.
        torch: the torch that jobs use; chooses the NCCL for nccl-tests.
        efa: version of the EFA installer; "" takes the newest pinned one.
        packages: further packages.
        memlock: of every user: "unlimited" or KiB.
        nofile: open files of a process.
        huge_pages: pages of 2 MiB to reserve; 0 leaves them as they are.
        shm_size: of /dev/shm, as tmpfs takes it.
        ntp: time servers; empty takes EC2's own on EC2, else the distribution's.
        mirror: directory or s3://bucket/prefix that has the pinned files.
        sha256: of pinned files, by name, where versions.yaml has none.
        enroot: whether containers (enroot, pyxis) are wanted.
        nccl_tests: whether nccl-tests are wanted.
        nvme, fsx, s3, slurm, users: see their classes.
    """

    instance: str = ""
    role: str = "compute"
    container: bool | None = None
    torch: str = ""
    efa: str = ""
    packages: tuple[str, ...] = ()
    memlock: str = "unlimited"
    nofile: int = 1048576
    huge_pages: int = 0
    shm_size: str = "80%"
    ntp: tuple[str, ...] = ()
    mirror: str = ""
    sha256: dict[str, str] = field(default_factory=dict)
    enroot: bool = False
    nccl_tests: bool = True
    nvme: Nvme = field(default_factory=Nvme)
    fsx: Fsx | None = None
    s3: tuple[Bucket, ...] = ()
    slurm: Slurm = field(default_factory=Slurm)
    users: tuple[User, ...] = ()

    @classmethod
    def from_mapping(cls, found: Any, where: str) -> Site:
        """The site that a mapping describes.

        Args:
            found: keys and values.
            where: what messages call the place it is from.

        Raises:
            UsageError: an unknown key (the nearest is named), a missing one, a wrong type or value.
        """
        site: Site = _build(cls, found, where)
        _validate(site, where)
        return site


def _build(cls: Any, found: Any, where: str) -> Any:
    if not isinstance(found, dict):
        raise UsageError(f"{where}: got {_kind(found)}, expected keys and values")
    hints = typing.get_type_hints(cls)
    for key in found:
        if key not in hints:
            near = difflib.get_close_matches(str(key), hints, n=1)
            raise UsageError(
                f"{where}: unknown key {key}; {f'did you mean {near[0]}?' if near else 'known: ' + ', '.join(hints)}"
            )
    for spec in dataclasses.fields(cls):
        if (
            spec.default is dataclasses.MISSING
            and spec.default_factory is dataclasses.MISSING
            and spec.name not in found
        ):
            raise UsageError(f"{where}: {spec.name} is missing")
    return cls(**{key: _value(hints[key], value, f"{where}: {key}") for key, value in found.items()})


def _value(hint: Any, value: Any, where: str) -> Any:
    """A value as its field's type; YAML's own types are not converted, but a version may be written as a number."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return None if value is None else _value(arguments[0], value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise UsageError(f"{where}: got {_kind(value)}, expected a list")
        return tuple(_value(arguments[0], item, f"{where}[{index}]") for index, item in enumerate(value))
    if dataclasses.is_dataclass(hint):
        return _build(hint, value, where)
    if origin is dict:
        if not isinstance(value, dict):
            raise UsageError(f"{where}: got {_kind(value)}, expected names and values")
        return {str(key): _value(str, item, f"{where}.{key}") for key, item in value.items()}
    if hint is str and isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise UsageError(f"{where}: got {value!r}, expected {hint.__name__}")
    if hint is str and any(ord(letter) < 32 for letter in value):
        # These words end up in fstab, limits.conf and unit files, where a line break would add a line.
        raise UsageError(f"{where}: got {value!r}, expected one line")
    return value


def _validate(site: Site, where: str) -> None:
    def expect(good: bool, key: str, got: object, expected: str) -> None:
        if not good:
            raise UsageError(f"{where}: {key}: got {got!r}, expected {expected}")

    expect(site.role in ("compute", "controller", "login"), "role", site.role, "compute, controller or login")
    expect(bool(re.fullmatch(r"unlimited|\d+", site.memlock)), "memlock", site.memlock, "unlimited or KiB")
    expect(site.nofile >= 1024, "nofile", site.nofile, "1024 or more")
    expect(site.huge_pages >= 0, "huge_pages", site.huge_pages, "0 or more")
    expect(bool(re.fullmatch(r"\d+[kmgKMG%]?", site.shm_size)), "shm_size", site.shm_size, "such as 80% or 512G")
    expect(site.nvme.fs in ("xfs", "ext4"), "nvme.fs", site.nvme.fs, "xfs or ext4")
    for device in site.nvme.devices:
        expect(device.startswith("/dev/"), "nvme.devices", device, "paths below /dev")
    mounts = [site.nvme.mount, *(bucket.mount for bucket in site.s3), *([site.fsx.mount] if site.fsx else [])]
    for mount in mounts:
        good = bool(re.fullmatch(r"(/[A-Za-z0-9._-]+)+", mount)) and ".." not in mount.split("/")
        expect(good, "mount", mount, "an absolute path without spaces")
    expect(len(set(mounts)) == len(mounts), "mount", mounts, "each used once")
    in_fstab = {"fsx.dns": site.fsx.dns, "fsx.mountname": site.fsx.mountname} if site.fsx else {}
    for bucket in site.s3:
        words = {"bucket": bucket.bucket, "prefix": bucket.prefix or "-", "cache": bucket.cache or "-"}
        in_fstab |= {f"s3: {bucket.bucket}: {key}": word for key, word in words.items()}
    for key, word in in_fstab.items():
        expect(bool(_WORD.fullmatch(word)), key, word, "a word without spaces and commas")
    for user in site.users:
        expect(bool(_NAME.fullmatch(user.name)), "users", user.name, "a name of lower-case letters, digits, _ and -")
        expect(user.uid >= 1000, f"users: {user.name}: uid", user.uid, "1000 or more")
    for artifact, sum_ in site.sha256.items():
        known = tuple(table()["artifacts"])
        expect(artifact in known, "sha256", artifact, f"one of {', '.join(known)}")
        expect(bool(re.fullmatch(r"[0-9a-f]{64}", sum_)), "sha256", sum_, "64 hexadecimal digits")
    expect(
        not site.mirror or site.mirror.startswith(("/", "s3://")), "mirror", site.mirror, "a directory's path or s3://"
    )


def _kind(value: Any) -> str:
    return {dict: "keys and values", list: "a list", str: "text", type(None): "nothing"}.get(
        type(value), type(value).__name__
    )
