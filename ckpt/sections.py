"""The `checkpoint:` section of a job file, as models: frozen dataclasses whose fields' metadata describe each key.

The metadata's words are pydantic's (ge, le, pattern, description) and the reference page's (unit, example, expected,
derived). `rules` of a section are methods that take it as it stands in the file, and yield (key, problem) for what
breaks the rule between its keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field
from typing import Any, Literal

_MAX_GROUP = 32  # nodes: bounds an agent's buffers, a few MiB for each member
_TEXT = {"pattern": "^[^\x00-\x1f\x7f]+$", "expected": "a string of printable characters"}
_EFFECTIVE = {  # the keys that a scheme has
    "none": ("scheme",),
    "partner": ("scheme", "group_size", "failure_domain", "copies"),
    "xor": ("scheme", "group_size", "failure_domain"),
    "rs": ("scheme", "group_size", "failure_domain", "parity"),
}


def _key(description: str, *, default: Any = MISSING, **metadata: Any) -> Any:
    return field(default=default, metadata=metadata | {"description": description})


@dataclass(frozen=True, kw_only=True)
class MemorySection:
    """Checkpoints in the nodes' memory."""

    every_steps: int = _key("A save every this number of steps.", default=10, ge=1, unit="steps", example=50)
    keep: int = _key(
        "Slots for saves, one of them for the save in flight.",
        default=2,
        ge=2,
        expected="a whole number, at least 2 (one committed, one in flight)",
        unit="saves",
        example=3,
    )


@dataclass(frozen=True, kw_only=True)
class RedundancySection:
    """Redundancy between nodes' memories, in sets of nodes cut across failure domains."""

    scheme: Literal["none", "partner", "xor", "rs"] = _key(
        "Nothing, copies on other nodes, XOR parity, or Reed-Solomon parity.", default="partner", example="rs"
    )
    group_size: int = _key(
        "Nodes of a set, about.", default=8, ge=2, le=_MAX_GROUP, expected=f"2 to {_MAX_GROUP} nodes", unit="nodes",
        example=4,
    )  # fmt: skip
    copies: int = _key(
        "Copies of each shard on other nodes; for `scheme: partner`.", default=1, ge=1, unit="copies", example=2
    )
    parity: int = _key(
        "Nodes of a set that may be lost at once; for `scheme: rs`.", default=2, ge=1, unit="nodes", example=3
    )
    failure_domain: Literal["node", "switch"] = _key(
        "What a set is cut across: no two of its nodes share one, where the job's nodes allow it.",
        default="node",
        example="switch",
    )

    def _has_no_idle_keys(self, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        for name in given:
            if name not in _EFFECTIVE[self.scheme]:
                yield name, f"has no effect with scheme {self.scheme}; leave it out"

    def _fits_its_group(self, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        name = {"partner": "copies", "rs": "parity"}.get(self.scheme)
        if name is not None and getattr(self, name) >= self.group_size:
            yield name, f"got {getattr(self, name)}, expected less than group_size, {self.group_size}"

    rules = (_has_no_idle_keys, _fits_its_group)


@dataclass(frozen=True, kw_only=True)
class TierSection:
    """A place below memory: which committed saves go there, and how many stay."""

    every_steps: int = _key(
        "The first committed save after this number of steps goes there.", default=500, ge=1, unit="steps", example=100
    )
    every_s: int | None = _key(
        "Also the first save after this time since the last one that went there.", default=None, ge=1, unit="s",
        example=600,
    )  # fmt: skip
    keep: int = _key("Saves that stay there.", default=3, ge=1, unit="saves", example=5)
    rate_limit_bytes_s: int | None = _key(
        "Limit of what each node writes there.", default=None, ge=1, unit="bytes/s", example=1000000000
    )


@dataclass(frozen=True, kw_only=True)
class NvmeSection(TierSection):
    """Checkpoints on a disk of each node's own."""

    path: str = _key(
        "A directory on every node.",
        pattern="^/[^\x00-\x1f\x7f]+$",
        expected="an absolute path, the same on all nodes; a bucket goes under s3, as its url",
        example="/local/holdfast",
    )
    every_steps: int = _key(
        "The first committed save after this number of steps goes there.", default=50, ge=1, unit="steps", example=100
    )
    keep: int = _key("Saves that stay there.", default=2, ge=1, unit="saves", example=3)


@dataclass(frozen=True, kw_only=True)
class SharedSection(TierSection):
    """Checkpoints in a directory that all nodes see (Lustre, NFS)."""

    path: str = _key("The directory; a relative path counts from the job file's folder.", **_TEXT, example="/fsx/ckpt")
    stripe_count: int | None = _key(
        "Storage targets of a node's file, on Lustre; -1 is all of them.",
        default=None,
        ge=-1,
        expected="a whole number of at least 1, or -1 for all",
        unit="targets",
        example=8,
    )
    on_job_end: bool = _key(
        "Whether Slurm's epilog brings there what a job that died has only in memory.", default=False, example=True
    )

    def _has_targets(self, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        if self.stripe_count == 0:
            yield "stripe_count", "got 0, expected a whole number of at least 1, or -1 for all"

    def _is_a_directory(self, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        if "://" in self.path:
            yield "path", f"got {self.path!r:.80}, expected a directory; a bucket goes under s3, as its url"

    rules = (_has_targets, _is_a_directory)


@dataclass(frozen=True, kw_only=True)
class S3Section(TierSection):
    """Checkpoints in a bucket of AWS, S3 Express or another server. Credentials come from boto3's standard chain."""

    url: str = _key(
        "The bucket, and a prefix in it.",
        pattern="^((s3|az)://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]|gs://[a-z0-9][a-z0-9._-]{1,61}[a-z0-9])(/[!-~]*)?$",
        expected="s3://bucket/prefix (or gs://, az://); a bucket's name has 3 to 63 characters",
        example="s3://bucket/prefix",
    )
    every_steps: int = _key(
        "The first committed save after this number of steps goes there.", default=1000, ge=1, unit="steps", example=500
    )
    endpoint_url: str | None = _key(
        "URL of a server that is not AWS.", default=None, **_TEXT, example="https://s3:9000"
    )
    region: str | None = _key("The bucket's region; without it, boto3's.", default=None, **_TEXT, example="us-east-1")
    path_style: bool | None = _key(
        "Whether the bucket stands in the path of a URL, not in its host; without it, as boto3 chooses.",
        default=None,
        example=True,
    )
    sse: str | None = _key("Encryption at the server.", default=None, **_TEXT, example="aws:kms")
    sse_kms_key_id: str | None = _key("The key of that encryption.", default=None, **_TEXT, example="alias/training")
    on_job_end: bool = _key(
        "Whether Slurm's epilog brings there what a job that died has only in memory.", default=False, example=True
    )
