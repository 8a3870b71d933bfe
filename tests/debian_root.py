"""A Debian of any release in a directory, and commands run in it in namespaces of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

_DEBIAN = "http://deb.debian.org/debian"
_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"

# All of it ends with the process that asked for it: its processes, and with them its mounts and its network.
APART = ("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child")

# Nothing of the outer root can be seen afterwards. Mount namespaces can be made in the new one.
_ENTER = """
set -e
mount --bind "$0" "$0"
cd "$0"
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mount -t tmpfs tmpfs dev/shm
mount -t tmpfs tmpfs run
pivot_root . mnt
exec chroot . /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin "${@:2}" bash -c "umount -l /mnt; set -e; $1"
"""


def install(root: Path, release: str) -> None:
    """Make a minimal Debian. It reaches the package registries as this machine does, and its packages start no daemon.

    The directory comes into place when it is complete.
    """
    draft = root.with_name(f"{root.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.parent.mkdir(parents=True, exist_ok=True)
    made = subprocess.run(
        (*APART, "debootstrap", "--variant=minbase", release, draft, _DEBIAN),
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        raise RuntimeError(f"debootstrap {release}: {(made.stdout + made.stderr).strip()[-2000:]}")
    # Testing and sid are dated: a mirror that is some days behind would be refused.
    (draft / "etc/apt/apt.conf.d/90mirror").write_text('Acquire::Check-Valid-Until "false";\n')
    (draft / "usr/sbin/policy-rc.d").write_text("#!/bin/sh\nexit 101\n")
    (draft / "usr/sbin/policy-rc.d").chmod(0o755)
    for name in ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf"):
        if Path(name).exists():
            shutil.copy(name, draft / name.lstrip("/"))
    # Under a name of its own: installing ca-certificates in there makes the usual one anew.
    if Path(_CERTIFICATES).exists():
        shutil.copy(_CERTIFICATES, draft / "etc/host-certificates.crt")
    draft.rename(root)


def environment(root: Path) -> list[str]:
    """Settings, as NAME=VALUE, by which pip in there reaches its registry as it does here."""
    pip = [f"{key}={value}" for key, value in os.environ.items() if key.startswith("PIP_") and key != "PIP_CERT"]
    if (root / "etc/host-certificates.crt").exists():
        pip.append("PIP_CERT=/etc/host-certificates.crt")
    return ["HOME=/root", *pip]


def inside(root: Path, script: str, *settings: str, network: bool) -> Sequence[str]:
    """The argument list that runs a Bash script in there as root; `$0` and more stand for nothing in it.

    Args:
        root: what `install` made.
        script: Bash; it ends at the first error.
        settings: its environment, as NAME=VALUE.
        network: whether it has this machine's network. Without, it has a network of its own, with nothing in it.
    """
    apart = APART if network else (*APART, "--net")
    return (*apart, "bash", "-c", _ENTER, str(root), script, *environment(root), *settings)
