"""The `checkpoint:` section of a job file, as models: frozen dataclasses whose field metadata describes each key.

The metadata keys are those of pydantic (ge, le, pattern, description) and of the reference page (unit, example,
expected, derived). The `rules` of a section are methods. Each takes the section as in the file, and yields (key,
problem) for each violation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field
from typing import Any, ClassVar, Literal

from ckpt.format.lasting import Best, Lasting

AUTO: Literal["auto"] = "auto"  # of every_steps: the cadence that loses least, by what the job measures
AUTO_FROM = 10  # steps between saves to memory with `auto`, until the job has measured
_STEPS = "a whole number of at least 1, or auto"
_MAX_GROUP = 32  # nodes; limits an agent's buffers, which are a few MiB for each member
_DUE = (
    "Committed saves whose step is a multiple of this go there; `auto`: as often as loses least, by what the job "
    "measures."
)
_TEXT = {"pattern": "^[^\x00-\x1f\x7f]+$", "expected": "a string of printable characters"}
_EFFECTIVE = {  # the keys that have an effect, by scheme
    "none": ("scheme",),
    "partner": ("scheme", "group_size", "failure_domain", "copies"),
    "xor": ("scheme", "group_size", "failure_domain"),
    "rs": ("scheme", "group_size", "failure_domain", "parity"),
}


def _key(description: str, *, default: Any = MISSING, **metadata: Any) -> Any:
    return field(default=default, metadata=metadata | {"description": description})


def _saves_sometimes(section: Any, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if section.every_steps != AUTO and section.every_steps < 1:
        yield "every_steps", f"got {section.every_steps}, expected {_STEPS}"


@dataclass(frozen=True, kw_only=True)
class MemorySection:
    """Checkpoints in the nodes' memory."""

    every_steps: int | Literal["auto"] = _key(
        "A save every this number of steps; `auto`: the cadence that loses least, by what the job measures.",
        default=10,
        expected=_STEPS,
        unit="steps",
        example=50,
    )
    keep: int = _key(
        "Saves kept in memory, including the one in flight. Each lower tier adds one slot; `holdfast ckpt plan` "
        "prints the number of slots.",
        default=2,
        ge=2,
        expected="a whole number, at least 2 (one committed, one in flight)",
        unit="saves",
        example=3,
    )

    rules = (_saves_sometimes,)


@dataclass(frozen=True, kw_only=True)
class RedundancySection:
    """Redundancy between the memories of nodes, in sets of nodes spread over failure domains."""

    scheme: Literal["none", "partner", "xor", "rs"] = _key(
        "No redundancy, copies on other nodes, XOR parity, or Reed-Solomon parity.", default="partner", example="rs"
    )
    group_size: int = _key(
        "Nodes in a set, roughly.", default=8, ge=2, le=_MAX_GROUP, expected=f"2 to {_MAX_GROUP} nodes", unit="nodes",
        example=4,
    )  # fmt: skip
    copies: int = _key(
        "Copies of each shard on other nodes; for `scheme: partner`.", default=1, ge=1, unit="copies", example=2
    )
    parity: int = _key(
        "Number of nodes of a set that may be lost at once; for `scheme: rs`.", default=2, ge=1, unit="nodes", example=3
    )
    failure_domain: Literal["node", "switch"] = _key(
        "Failure domain: no two nodes of a set share one, if the job's nodes allow it.",
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
    """A tier below memory: the committed saves that go there, and the number to keep."""

    every_steps: int | Literal["auto"] = _key(_DUE, default=500, expected=_STEPS, unit="steps", example=100)
    every_s: int | None = _key(
        "Also the first save after this time since the last save that went there.", default=None, ge=1, unit="s",
        example=600,
    )  # fmt: skip
    keep: int = _key("Number of newest saves to keep.", default=3, ge=1, unit="saves", example=5)
    keep_every_steps: int | None = _key(
        "Milestones: saves whose step is a multiple of this stay for good.", default=None, ge=1, unit="steps",
        example=10000,
    )  # fmt: skip
    keep_best: Mapping[str, Literal["min", "max"] | int] | None = _key(
        "A metric that the script gives to `save`, with min or max, and the number `n` of best saves that stay.",
        default=None,
        expected="one metric with min or max, and n, such as {loss: min, n: 3}",
        example={"loss": "min", "n": 3},
    )
    rate_limit_bytes_s: int | None = _key(
        "Write rate limit of each node.", default=None, ge=1, unit="bytes/s", example=1000000000
    )

    @property
    def best(self) -> Best | None:
        """The metric of `keep_best`, and the number of saves that stay by it."""
        return None if self.keep_best is None else Best.from_mapping(self.keep_best)

    @property
    def lasting(self) -> Lasting:
        """What stays besides the newest saves."""
        return Lasting(every_steps=self.keep_every_steps, best=self.best)

    def _has_a_metric(self, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        try:
            _ = self.keep_best and Best.from_mapping(self.keep_best)
        except ValueError as error:
            yield "keep_best", f"got {self.keep_best!r:.80}, expected {error}"

    def _reaches_its_milestones(self, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        if self.every_steps == AUTO or self.every_steps < 1 or self.keep_every_steps is None:
            return
        if self.keep_every_steps % self.every_steps:
            expected = f"a multiple of every_steps, {self.every_steps}"
            yield "keep_every_steps", f"got {self.keep_every_steps}, expected {expected}"

    @property
    def multiples(self) -> tuple[int, ...]:
        """A step that is a multiple of one of these is due here, whatever the time."""
        if self.every_steps != AUTO:
            return (self.every_steps,)
        return () if self.keep_every_steps is None else (self.keep_every_steps,)

    rules: ClassVar[tuple[Callable[..., Iterator[tuple[str, str]]], ...]] = (
        _saves_sometimes, _has_a_metric, _reaches_its_milestones,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class NvmeSection(TierSection):
    """Checkpoints on each node's own disk."""

    path: str = _key(
        "A directory on every node's own disk that its user can write: with the hooks' `local_disk: /local`, "
        "`/local/holdfast-$UID`.",
        pattern="^/[^\x00-\x1f\x7f]+$",
        expected="an absolute path, the same on all nodes; a bucket goes under s3, as its url",
        example="/local/holdfast-1000",
    )
    every_steps: int | Literal["auto"] = _key(_DUE, default=50, expected=_STEPS, unit="steps", example=100)
    keep: int = _key("Number of newest saves to keep.", default=2, ge=1, unit="saves", example=3)


@dataclass(frozen=True, kw_only=True)
class SharedSection(TierSection):
    """Checkpoints in a directory that all nodes see (Lustre, NFS)."""

    path: str = _key(
        "The directory; a relative path is relative to the job file's folder.", **_TEXT, example="/fsx/ckpt"
    )
    stripe_count: int | None = _key(
        "Number of Lustre storage targets for a node's file; -1: all.",
        default=None,
        ge=-1,
        expected="a whole number of at least 1, or -1 for all",
        unit="targets",
        example=8,
    )

    def _has_targets(self, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        if self.stripe_count == 0:
            yield "stripe_count", "got 0, expected a whole number of at least 1, or -1 for all"

    def _is_a_directory(self, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        if "://" in self.path:
            yield "path", f"got {self.path!r:.80}, expected a directory; a bucket goes under s3, as its url"

    rules = (*TierSection.rules, _has_targets, _is_a_directory)


@dataclass(frozen=True, kw_only=True)
class S3Section(TierSection):
    """Checkpoints in a bucket of AWS, S3 Express or another server. Credentials come from boto3's standard chain."""

    url: str = _key(
        "The bucket, and a prefix in it.",
        pattern="^((s3|az)://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]|gs://[a-z0-9][a-z0-9._-]{1,61}[a-z0-9])(/[!-~]*)?$",
        expected="s3://bucket/prefix (or gs://, az://); a bucket's name has 3 to 63 characters",
        example="s3://bucket/prefix",
    )
    every_steps: int | Literal["auto"] = _key(_DUE, default=1000, expected=_STEPS, unit="steps", example=500)
    endpoint_url: str | None = _key(
        "URL of a server that is not AWS.",
        default=None,
        pattern="^https?://[^\x00-\x20\x7f/?#]+(/[!-~]*)?$",
        expected="a URL that begins with http:// or https://",
        example="https://s3:9000",
    )
    region: str | None = _key(
        "The bucket's region; by default that of boto3.", default=None, **_TEXT, example="us-east-1"
    )
    path_style: bool | None = _key(
        "Whether the bucket is in the path of URLs, not in the host name; by default boto3 decides.",
        default=None,
        example=True,
    )
    sse: str | None = _key("Encryption at the server.", default=None, **_TEXT, example="aws:kms")
    sse_kms_key_id: str | None = _key("The key of that encryption.", default=None, **_TEXT, example="alias/training")
    bucket_owner: str | None = _key(
        "AWS account that owns the bucket. Requests are refused if the name has come to another account.",
        default=None,
        pattern="^[0-9]{12}$",
        expected="an AWS account id of 12 digits, in quotes",
        example="123456789012",
    )

    def _has_an_owner_of_aws(self, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        if self.bucket_owner is not None and not self.url.startswith("s3://"):
            yield "bucket_owner", f"got {self.bucket_owner}, which has no effect for {self.url:.80}; leave it out"

    rules = (*TierSection.rules, _has_an_owner_of_aws)
