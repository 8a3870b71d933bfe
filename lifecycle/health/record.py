"""Records the output of this machine's tools as data for tests: `python -m lifecycle.health.record DIRECTORY`.

Serial numbers and UUIDs are replaced; nothing else is changed.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from slurm.command import CommandError, CommandRunner, run

COMMANDS: dict[str, tuple[str, ...]] = {
    "nvidia-smi-q.xml": ("nvidia-smi", "-q", "-x"),
    "nvidia-smi-q.txt": ("nvidia-smi", "-q"),
    "nvlink-status.txt": ("nvidia-smi", "nvlink", "-s"),
    "nvlink-errors.txt": ("nvidia-smi", "nvlink", "-e"),
    "nvidia-topo.txt": ("nvidia-smi", "topo", "-m"),
    "fabric-manager.txt": ("systemctl", "is-active", "nvidia-fabricmanager"),
    "dcgm-1.json": ("dcgmi", "diag", "-r", "1", "-j"),
    "fi-info-efa.txt": ("fi_info", "-p", "efa", "-t", "FI_EP_RDM"),
    "kernel-log.txt": ("dmesg", "--raw"),
    "pci.txt": ("lspci", "-Dnn"),
    "chrony.txt": ("chronyc", "-c", "tracking"),
}
_FILES = ("/proc/driver/nvidia/version", "/sys/module/nvidia/version", "/sys/class/dmi/id/product_name")
_SECRET = re.compile(r"(GPU-)[0-9a-f-]{36}|(<(?:serial|pdi|board_id)>)[^<]+|((?:Serial Number|GPU PDI)\s*: )\S+")
_LIMIT_S = 120.0


def record(directory: Path, runner: CommandRunner = run) -> list[str]:
    """Writes one file for each command and file that this machine has.

    Args:
        directory: created if it is missing.
        runner: replaced in tests.

    Returns:
        A line for each: the result, or why it was not recorded.
    """
    directory.mkdir(parents=True, exist_ok=True)
    told = []
    for name, argv in COMMANDS.items():
        try:
            done = runner(argv, timeout_s=_LIMIT_S, check=False)
        except CommandError as error:
            told.append(f"{name}: not recorded: {error.reason}")
            continue
        (directory / name).write_text(_masked(done.stdout))
        told.append(f"{name}: {len(done.stdout)} characters, exit code {done.returncode}")
    for source in map(Path, _FILES):
        if source.exists():
            (directory / str(source).strip("/").replace("/", "-")).write_text(source.read_text())
            told.append(f"{source}: recorded")
    return told


def _masked(text: str) -> str:
    return _SECRET.sub(lambda hit: next(group for group in hit.groups() if group) + "masked", text)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m lifecycle.health.record DIRECTORY")
    print("\n".join(record(Path(sys.argv[1]))))
