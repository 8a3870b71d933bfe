"""What to keep where (the job file's `checkpoint:` section), and who this process is (the environment)."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from ckpt.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_RUN_ID = re.compile(r"[A-Za-z0-9_.-]+")
_WHOLE = re.compile(r"[0-9]{1,18}")
_POSITIVE = re.compile(r"[1-9][0-9]{0,5}")
_ABSOLUTE = re.compile(r"/.+")
_S3_URL = re.compile(r"(s3|gs|az)://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[!-~]*)?")
SCHEMES = ("none", "partner", "xor", "rs")
FAILURE_DOMAINS = ("node", "switch")
_MAX_GROUP = 32  # nodes: bounds an agent's buffers, a few MiB for each member


@dataclass(frozen=True, kw_only=True)
class MemoryTier:
    """Memory: a save every `every_steps` steps; `keep` slots, one of them in flight."""

    every_steps: int = 10
    keep: int = 2


@dataclass(frozen=True, kw_only=True)
class Redundancy:
    """Redundancy between nodes' memories: in sets of about `group_size` nodes cut across failure domains."""

    scheme: str = "partner"
    group_size: int = 8
    copies: int = 1  # of each shard, on other nodes; for partner
    parity: int = 2  # nodes of a set that may be lost at once; for rs
    failure_domain: str = "node"

    def check(self, where: str) -> None:
        """Raises ConfigError naming the key."""
        for key, value, known in (
            ("scheme", self.scheme, SCHEMES),
            ("failure_domain", self.failure_domain, FAILURE_DOMAINS),
        ):
            if value not in known:
                raise ConfigError(f"{where}.{key}: got {value!r}, expected one of {', '.join(known)}")
        if not 2 <= self.group_size <= _MAX_GROUP:
            raise ConfigError(f"{where}.group_size: got {self.group_size}, expected 2 to {_MAX_GROUP} nodes")
        for scheme, key, count in (("partner", "copies", self.copies), ("rs", "parity", self.parity)):
            if self.scheme == scheme and count >= self.group_size:
                raise ConfigError(f"{where}.{key}: got {count}, expected less than group_size, {self.group_size}")


@dataclass(frozen=True, kw_only=True)
class LowerTier:
    """A place below memory: which committed saves go there, and how many stay."""

    every_steps: int = 500
    every_s: int | None = None  # also the first save once so many seconds have passed since the last that went there
    keep: int = 3
    rate_limit_bytes_s: int | None = None  # of what each node writes there


@dataclass(frozen=True, kw_only=True)
class NvmeTier(LowerTier):
    """A disk of each node's own: `path` names a directory on every node."""

    path: str
    every_steps: int = 50
    keep: int = 2


@dataclass(frozen=True, kw_only=True)
class SharedTier(LowerTier):
    """A directory that all nodes see (Lustre, NFS)."""

    path: str
    stripe_count: int | None = None  # storage targets of a node's file, on Lustre; -1 is all
    on_job_end: bool = False  # Slurm's epilog brings what a job that died has only in memory


@dataclass(frozen=True, kw_only=True)
class S3Tier(LowerTier):
    """A bucket: AWS, S3 Express, or another server at `endpoint_url`. Credentials come from boto3's standard chain."""

    url: str  # s3://bucket/prefix
    every_steps: int = 1000
    endpoint_url: str | None = None
    region: str | None = None
    path_style: bool | None = None  # the bucket in the path or in the host; None: as boto3 does by itself
    sse: str | None = None
    sse_kms_key_id: str | None = None
    on_job_end: bool = False  # as in the shared tier


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """The validated `checkpoint:` section of a job file."""

    namespace: str
    memory: MemoryTier = MemoryTier()
    redundancy: Redundancy = Redundancy()
    nvme: NvmeTier | None = None
    shared: SharedTier | None = None
    s3: S3Tier | None = None

    @classmethod
    def from_mapping(cls, section: Mapping[str, Any], where: str = "checkpoint") -> CheckpointConfig:
        """Validates a section.

        Args:
            section: keys namespace, memory, redundancy, nvme, shared, s3.
            where: prefix for error messages.

        Raises:
            ConfigError: unknown key (names the nearest), wrong type or value.
        """
        _known(section, tuple(field.name for field in fields(cls)), where)
        namespace = section.get("namespace")
        if not isinstance(namespace, str) or not _NAME.fullmatch(namespace):
            raise ConfigError(
                f"{where}.namespace: got {namespace!r}, expected letters, digits, '_', '.', '-' (128 at most)"
            )
        lower = {
            name: _build(kind, section[name], f"{where}.{name}")
            for name, kind in _LOWER.items()
            if section.get(name) is not None
        }
        config = cls(
            namespace=namespace,
            memory=_build(MemoryTier, section.get("memory") or {}, f"{where}.memory"),
            redundancy=_build(Redundancy, section.get("redundancy") or {}, f"{where}.redundancy"),
            **lower,
        )
        _check_values(config, where)
        return config

    @property
    def lower(self) -> dict[str, LowerTier]:
        """The configured tiers below memory by name, nearest first."""
        return {name: tier for name in _LOWER if (tier := getattr(self, name)) is not None}

    @property
    def on_job_end(self) -> tuple[str, ...]:
        """The tiers that ask for what a job that died has only in memory."""
        return tuple(name for name, tier in self.lower.items() if getattr(tier, "on_job_end", False))

    @property
    def slots(self) -> int:
        """Slots in each rank's arena: `memory.keep`, and one more for each lower tier, which a drain there may hold."""
        return self.memory.keep + len(self.lower)


_LOWER: dict[str, type[LowerTier]] = {"nvme": NvmeTier, "shared": SharedTier, "s3": S3Tier}


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where this process stands: the run, the attempt, the node and its memory directory.

    `generation` counts, for agents, the worlds of an attempt: those above 0 took the place of lost ones.
    """

    run_id: str
    attempt: int
    node: str
    nodes: tuple[str, ...]
    ranks_per_node: int
    ram_dir: Path
    domains: tuple[str, ...] = ()  # each node's failure domain, in the order of `nodes`; empty: nothing is known
    job: str = ""  # Slurm's number, for messages
    generation: int = 0
    ended_command: tuple[str, ...] = ()  # exits with 0 when the run whose id it is given has ended; empty: unknown

    @property
    def node_rank(self) -> int:
        return self.nodes.index(self.node)

    @property
    def who(self) -> str:
        """Names the run to people."""
        return f"job {self.job} (run {self.run_id})" if self.job else f"run {self.run_id}"

    @property
    def world_size(self) -> int:
        return len(self.nodes) * self.ranks_per_node

    @property
    def socket_path(self) -> Path:
        return self.ram_dir / f"agent-{self.attempt}.sock"

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Place:
        """Reads the HOLDFAST_* variables that the launcher sets.

        Raises:
            ConfigError: a variable is missing or malformed.
        """
        try:
            nodes = tuple(env["HOLDFAST_NODES"].split(","))
            node = env.get("HOLDFAST_NODE") or env["SLURMD_NODENAME"]
            place = cls(
                run_id=_matching(env, "HOLDFAST_RUN_ID", _RUN_ID, "letters, digits, '_', '.', '-'"),
                attempt=int(_matching(env, "HOLDFAST_ATTEMPT", _WHOLE, "a whole number")),
                node=node,
                nodes=nodes,
                ranks_per_node=int(_matching(env, "HOLDFAST_RANKS_PER_NODE", _POSITIVE, "a number of at least 1")),
                ram_dir=Path(_matching(env, "HOLDFAST_RAM_DIR", _ABSOLUTE, "an absolute path")),
                domains=tuple(env["HOLDFAST_DOMAINS"].split(",")) if env.get("HOLDFAST_DOMAINS") else (),
                job=env.get("SLURM_JOB_ID", ""),
                generation=int(
                    _matching({"HOLDFAST_GENERATION": "0", **env}, "HOLDFAST_GENERATION", _WHOLE, "a whole number")
                ),
                ended_command=_command(env, "HOLDFAST_RUN_ENDED"),
            )
        except KeyError as error:
            raise ConfigError(
                f"environment: {error.args[0]} is not set; run the script with `holdfast run` or `holdfast submit`, "
                "or construct Checkpointer(...) with explicit arguments"
            ) from None
        if len(set(nodes)) != len(nodes):
            raise ConfigError(f"environment: HOLDFAST_NODES={','.join(nodes)} names a node twice")
        if place.domains and len(place.domains) != len(nodes):
            raise ConfigError(
                f"environment: HOLDFAST_DOMAINS names {len(place.domains)} domains, expected one for each of "
                f"{len(nodes)} HOLDFAST_NODES"
            )
        if node not in nodes:
            raise ConfigError(f"environment: HOLDFAST_NODE={node!r} is not in HOLDFAST_NODES={','.join(nodes)}")
        return place


def _command(env: Mapping[str, str], name: str) -> tuple[str, ...]:
    try:
        argv = json.loads(env.get(name) or "[]")
    except ValueError as error:
        raise ConfigError(f"environment: {name} is not JSON: {error}") from None
    if not isinstance(argv, list) or not all(isinstance(word, str) for word in argv):
        raise ConfigError(f"environment: {name}={env[name]!r:.200}, expected a list of words in JSON")
    return tuple(argv)


def config_from_env(env: Mapping[str, str]) -> CheckpointConfig:
    """The `checkpoint:` section that the launcher passes in HOLDFAST_CHECKPOINT."""
    try:
        section = json.loads(env["HOLDFAST_CHECKPOINT"])
    except KeyError:
        raise ConfigError(
            "environment: HOLDFAST_CHECKPOINT is not set; add a `checkpoint:` section to the job file"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"environment: HOLDFAST_CHECKPOINT is not JSON: {error}") from None
    return CheckpointConfig.from_mapping(section)


def _matching(env: Mapping[str, str], name: str, pattern: re.Pattern[str], expected: str) -> str:
    if not pattern.fullmatch(env[name]):
        raise ConfigError(f"environment: {name}={env[name]!r:.200}, expected {expected}")
    return env[name]


def _known(section: Mapping[str, Any], allowed: tuple[str, ...], where: str) -> None:
    if not isinstance(section, Mapping):
        raise ConfigError(f"{where}: got {section!r:.60}, expected a mapping")
    for key in section:
        if key not in allowed:
            near = difflib.get_close_matches(str(key), allowed, n=1)
            hint = f", did you mean {near[0]}?" if near else f"; known keys: {', '.join(allowed)}"
            raise ConfigError(f"{where}.{key}: unknown key{hint}")


def _check_values(config: CheckpointConfig, where: str) -> None:
    config.redundancy.check(f"{where}.redundancy")
    if config.memory.keep < 2:
        raise ConfigError(
            f"{where}.memory.keep: got {config.memory.keep}, expected at least 2 (one committed, one in flight)"
        )
    if config.nvme and not _ABSOLUTE.fullmatch(config.nvme.path):
        raise ConfigError(
            f"{where}.nvme.path: got {config.nvme.path!r}, expected an absolute path, the same on all nodes"
        )
    if config.s3 and not _S3_URL.fullmatch(config.s3.url):
        raise ConfigError(f"{where}.s3.url: got {config.s3.url!r:.200}, expected s3://bucket/prefix")


def _build(kind: type, section: Mapping[str, Any], where: str) -> Any:
    """One tier's dataclass from its mapping: positive ints, non-empty strings, true and false; None where optional."""
    types = {field.name: str(field.type) for field in fields(kind)}
    _known(section, tuple(types), where)
    for key, value in section.items():
        expected, _, optional = types[key].partition(" | ")
        if optional and value is None:
            continue
        least = -1 if key == "stripe_count" else 1
        if expected == "int" and (isinstance(value, bool) or not isinstance(value, int) or value < least or not value):
            raise ConfigError(f"{where}.{key}: got {value!r}, expected a whole number of at least 1")
        if expected == "str" and (not isinstance(value, str) or not value or not value.isprintable()):
            raise ConfigError(f"{where}.{key}: got {value!r:.200}, expected a string of printable characters")
        if expected == "bool" and not isinstance(value, bool):
            raise ConfigError(f"{where}.{key}: got {value!r}, expected true or false")
    missing = [field.name for field in fields(kind) if field.default is MISSING and field.name not in section]
    if missing:
        raise ConfigError(f"{where}.{missing[0]}: missing")
    return kind(**section)
