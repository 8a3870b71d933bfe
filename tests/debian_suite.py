"""`python -m tests.debian_suite SUITE TORCH PYTEST-ARGUMENTS`: this checkout's tests on a newer Debian, in a directory.

SUITE is trixie, testing, sid or another name that the installed debootstrap knows; it decides the versions of Slurm
and Python. TORCH is a requirement, such as torch==2.14.1. The root is made once, in build/debian-SUITE; `make clean`
removes it. torch is PyPI's build, which brings 4 GB of CUDA libraries: Debian's own has no libuv, and torchrun does not
start with it. The tests run in namespaces of their own, without a network: nothing of them stays.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from tests import debian_root

_CHECKOUT = Path(__file__).resolve().parents[1]
_PACKAGES = "make git procps psmisc python3 python3-venv"
_PREPARE = f"""
export DEBIAN_FRONTEND=noninteractive
[ -e /var/lib/tests-installed ] || {{
    apt-get update -qq && apt-get install -y -qq --no-install-recommends {_PACKAGES} >/var/log/apt.log 2>&1 ||
        {{ tail -n 20 /var/log/apt.log; exit 1; }}
    # Since 25.05 Slurm holds a job with --export=ALL,NAME=VALUE if its user has no login shell.
    usermod --shell /bin/bash nobody
    touch /var/lib/tests-installed
}}
cd /src
git init -q && git add -A
tests/install_slurm.sh
"""


def copy_checkout(root: Path) -> None:
    """The files of this checkout, committed or not, in /src; the environment there is kept."""
    target = root / "src"
    target.mkdir(exist_ok=True)
    for path in target.iterdir():
        if path.name != ".venv":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    listing = ("git", "-C", str(_CHECKOUT), "ls-files", "--cached", "--others", "--exclude-standard", "-z")
    for name in filter(None, subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split("\0")):
        if (_CHECKOUT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(_CHECKOUT / name, target / name)


def main(suite: str, torch: str, pytest_arguments: list[str]) -> int:
    """Exit code of pytest."""
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        print("make test-debian: needs root and debootstrap", file=sys.stderr)
        return 2
    root = _CHECKOUT / f"build/debian-{suite}"
    if not root.exists():
        print(f"making Debian {suite} in {root}", flush=True)
        debian_root.install(root, suite)
    copy_checkout(root)
    make = f"make CUDA=1 {shlex.quote(f'TORCH={torch}')}"
    prepare = f"{_PREPARE}{make} .venv/.installed-dev"
    prepared = subprocess.run(debian_root.inside(root, prepare, network=True), check=False).returncode
    if prepared:
        return prepared
    versions = "slurmd -V; .venv/bin/python -c 'import sys, torch; print(sys.version, torch.__version__)'"
    flags = shlex.quote(f"PYTEST_FLAGS={shlex.join(pytest_arguments)}")
    script = f"ip link set lo up; cd /src; {versions}; {make} test {flags}"
    return subprocess.run(debian_root.inside(root, script, network=False), check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
