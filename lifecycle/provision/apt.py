"""Installs packages of Debian and Ubuntu with apt and dpkg."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from lifecycle.provision.step import ProvisionedNode, StepError
from slurm.command import CommandError

_INSTALL_S = 1800.0
_LOCK_S = 300  # unattended-upgrades holds dpkg's lock for minutes on a fresh instance
_APT = ("apt-get", "-y", "-q", "-o", f"DPkg::Lock::Timeout={_LOCK_S}", "-o", "Dpkg::Options::=--force-confold")


def missing(node: ProvisionedNode, packages: Sequence[str]) -> list[str]:
    """List the packages that are not installed. `name=version` requires exactly that version.

    Raises:
        StepError: this system has no dpkg.
    """
    names = [package.partition("=")[0] for package in packages]
    query = ("dpkg-query", "-W", "-f", "${Package} ${db:Status-Status} ${Version}\\n")
    try:
        found = node.run((*query, *names), check=False).stdout
    except CommandError:
        system = dict(line.split("=", 1) for line in node.text("/etc/os-release").splitlines() if "=" in line)
        raise StepError(
            f"packages: got {system.get('PRETTY_NAME', 'an unknown system')} without dpkg, expected Debian or Ubuntu; "
            f"install {' '.join(names)} by hand and run again with --skip"
        ) from None
    installed = {}
    for line in found.splitlines():
        name, status, *version = line.split()
        if status == "installed":
            installed[name] = version[0]
    wanted = [(package, *package.partition("=")[::2]) for package in packages]
    return [package for package, name, version in wanted if installed.get(name, "") != (version or installed.get(name))]


def install(node: ProvisionedNode, packages: Sequence[str]) -> None:
    """Install packages from the system's repositories. First repairs what a killed dpkg has left.

    Raises:
        StepError: a package does not exist or cannot be installed.
    """
    _repair(node)
    _apt(node, (*_APT, "update"))
    _apt(node, (*_APT, "--no-install-recommends", "install", *packages))


def install_file(node: ProvisionedNode, package: Path) -> None:
    """Install a package file, and its dependencies from the system's repositories.

    Raises:
        StepError: the package cannot be installed.
    """
    _repair(node)
    _apt(node, (*_APT, "--no-install-recommends", "install", str(package)))


def _repair(node: ProvisionedNode) -> None:
    """Repairs what a killed dpkg has left: reinstalls half-unpacked packages and configures unpacked ones."""
    query = ("dpkg-query", "-W", "-f", "${db:Status-Eflag} ${Package}\\n")
    flags = [line.split() for line in node.run(query, check=False).stdout.splitlines()]
    torn = [words[1] for words in flags if words[0] == "reinstreq"]
    if torn:  # with one of these, `dpkg --configure -a` fails for all packages; apt needs --reinstall to repair them
        _apt(node, (*_APT, "update"))
        _apt(node, (*_APT, "--no-install-recommends", "--reinstall", "install", *torn))
    _apt(node, ("dpkg", "--configure", "-a"))


def _apt(node: ProvisionedNode, argv: Sequence[str]) -> None:
    try:
        node.run(argv, timeout_s=_INSTALL_S, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})
    except CommandError as error:
        errors = [line for line in (error.result.stderr + error.result.stdout).splitlines() if line.startswith("E:")]
        raise StepError(f"{shlex.join(argv[:1])}: {'; '.join(errors) or error}") from None
