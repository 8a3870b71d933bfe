"""/etc/holdfast/health.yaml: settings of the health checks. Every key is optional, and so is the file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from holdfast.settings.keys import key
from holdfast.settings.yaml_file import read_settings

SETTINGS_FILE = Path("/etc/holdfast/health.yaml")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the health checks."""

    instance: str | None = key(
        "The instance type of the machine, if its firmware does not give it; on premises the most similar type.",
        default=None,
        example="p5.48xlarge",
    )
    skip: tuple[str, ...] = key("Checks to leave out.", default=(), expected="a check's name", example="[s3_write]")
    nvme: str | None = key(
        "Directory on the node's own disk to which jobs write; by default every NVMe mount.",
        default=None,
        example="/local",
    )
    names: tuple[str, ...] = key(
        "Hosts whose names must resolve, in addition to the node and Slurm's controllers.",
        default=(),
        expected="a host's name",
        example="[ldap.example.org]",
    )
    s3: str | None = key(
        "Bucket and prefix to which jobs write.",
        default=None,
        pattern="^s3://.+$",
        expected="s3://bucket/prefix",
        example="s3://bucket/prefix",
    )
    s3_endpoint: str | None = key(
        "URL of an S3 server that is not AWS.", default=None, example="https://s3.example.org"
    )
    python: str | None = key(
        "Interpreter that has torch, for the all-reduces; by default the one that runs the checks.",
        default=None,
        example="/opt/train/bin/python",
    )
    allreduce_gb_s: float | None = key(
        "Bus bandwidth of an all-reduce within a healthy node of this site.",
        default=None,
        gt=0,
        allow_inf_nan=False,
        unit="GB/s",
        example=450,
    )
    pair_allreduce_gb_s: float | None = key(
        "Bus bandwidth of an all-reduce over two healthy nodes of this site.",
        default=None,
        gt=0,
        allow_inf_nan=False,
        unit="GB/s",
        example=300,
    )
    textfile: str | None = key(
        "The directory of node_exporter's textfile collector; each run that writes a verdict writes its metrics there.",
        default=None,
        pattern="^/.*$",
        expected="an absolute path",
        example="/var/lib/node_exporter/textfile",
    )

    @classmethod
    def read(cls, path: Path) -> Settings:
        """The file's settings.

        Raises:
            UsageError: the file cannot be read, or something in it is not valid.
        """
        from holdfast.settings.validation import validated  # here, because runners import this but read no file

        return validated(cls, read_settings(path), source=str(path))
