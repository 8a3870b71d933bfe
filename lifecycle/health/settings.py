"""/etc/holdfast/health.yaml: what a site tells the health checks. Every key is optional, and so is the file."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from lifecycle.errors import UsageError
from lifecycle.yaml_file import read_settings

SETTINGS_FILE = Path("/etc/holdfast/health.yaml")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a site tells the health checks.

    Attributes:
        instance: the machine's type, where the firmware does not tell it (on-prem: the type it equals).
        skip: names of checks that are not run here.
        nvme: directory on the node's own disk that jobs write to; None: every NVMe mount that is found.
        names: hosts whose names have to resolve, beside the node's own and Slurm's controllers.
        s3: s3://bucket/prefix that jobs write to.
        s3_endpoint: URL of a server that is not AWS.
        python: interpreter that has torch, for the all-reduces; None: the one that runs the checks.
        allreduce_gb_s: bus bandwidth that an all-reduce within a fit node of this site reaches, GB/s.
        pair_allreduce_gb_s: the same over two nodes.
    """

    instance: str | None = None
    skip: tuple[str, ...] = ()
    nvme: str | None = None
    names: tuple[str, ...] = ()
    s3: str | None = None
    s3_endpoint: str | None = None
    python: str | None = None
    allreduce_gb_s: float | None = None
    pair_allreduce_gb_s: float | None = None

    @classmethod
    def read(cls, path: Path) -> Settings:
        """The file's settings.

        Raises:
            UsageError: it cannot be read or is not such a file.
        """
        return cls(**{str(key): _value(path, str(key), value) for key, value in read_settings(path).items()})


def _value(path: Path, key: str, value: Any) -> Any:
    known = {field.name: str(field.type) for field in fields(Settings)}
    if key not in known:
        near = difflib.get_close_matches(key, known, n=1)
        raise UsageError(
            f"{path}: unknown key {key}; {f'did you mean {near[0]}?' if near else 'known: ' + ', '.join(known)}"
        )
    if known[key].startswith("float"):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            raise UsageError(f"{path}: {key}: got {value!r}, expected a number, more than 0")
        return float(value)
    if known[key].startswith("tuple"):
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise UsageError(f"{path}: {key}: got {value!r}, expected a list of names")
        return tuple(value)
    if not isinstance(value, str):
        raise UsageError(f"{path}: {key}: got {value!r}, expected text")
    return value
