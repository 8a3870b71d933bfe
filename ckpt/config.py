"""The checkpoint configuration (the job file's `checkpoint:` section), and the place of this process (environment)."""

from __future__ import annotations

import difflib
import json
import os
import pwd
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ckpt.errors import ConfigError
from ckpt.format.lasting import NUMBER, Best
from ckpt.format.line import NOBODY, Owner
from ckpt.sections import MemorySection, NvmeSection, RedundancySection, S3Section, SharedSection, TierSection
from holdfast.base.environment import Variable

LOWER = ("nvme", "shared", "s3")  # the tiers below memory, nearest first

_RUN_ID = re.compile(r"[A-Za-z0-9_.-]+")
_WHOLE = re.compile(r"[0-9]{1,18}")
_POSITIVE = re.compile(r"[1-9][0-9]{0,5}")
_ABSOLUTE = re.compile(r"/.+")


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """The `checkpoint:` section of a job file."""

    namespace: str = field(
        metadata={
            "description": "Name of the series of checkpoints.",
            "pattern": "^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$",
            "expected": "letters, digits, '_', '.', '-' (128 at most)",
            "derived": "the job's name",
            "example": "gpt",
        }
    )
    memory: MemorySection = field(default=MemorySection(), metadata={"description": "Saves in memory."})
    redundancy: RedundancySection = field(
        default=RedundancySection(), metadata={"description": "Redundancy of saves in memory."}
    )
    start_fresh: bool = field(
        default=False,
        metadata={
            "description": "Whether the run begins at step 0 although the namespace has steps. They stay as a line of "
            "their own. Later attempts of the run continue its own steps; the job ends if none can be restored.",
            "example": True,
        },
    )
    nvme: NvmeSection | None = field(default=None, metadata={"description": "Saves on each node's disk."})
    shared: SharedSection | None = field(default=None, metadata={"description": "Saves in a shared directory."})
    s3: S3Section | None = field(default=None, metadata={"description": "Saves in a bucket."})

    def _has_one_best(self, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        best = None
        for name in LOWER:
            if (section := getattr(self, name)) is None or not section.keep_best:
                continue
            found = {metric: mode for metric, mode in section.keep_best.items() if metric != NUMBER}
            if best is not None and found != best:
                expected = f"{best}, as in the tier before it: one step is the best of a run"
                yield f"{name}.keep_best", f"got {found}, expected {expected}"
            best = best or found

    rules = (_has_one_best,)

    @classmethod
    def from_mapping(cls, section: Mapping[str, Any], where: str = "checkpoint") -> CheckpointConfig:
        """Validates a configuration from a script. The launcher validates job files itself.

        Args:
            where: name of the section in errors.

        Raises:
            ConfigError: unknown or missing keys, wrong types or values.
        """
        from pydantic import TypeAdapter, ValidationError

        try:
            data = {name: value for name, value in section.items() if value is not None}
            text = json.dumps(data, default=os.fspath)
            config: CheckpointConfig = TypeAdapter(cls).validate_json(text, strict=True, extra="forbid")
        except ValidationError as error:
            problems = list(dict.fromkeys(_problem(each) for each in error.errors(include_url=False)))
        except (AttributeError, TypeError, ValueError, RecursionError):
            problems = [("", f"got {section!r:.60}, expected a mapping of plain values")]
        else:
            problems = list(_broken_rules(config, data))
        if problems:
            lines = (f"{where}.{key}: {problem}" if key else f"{where}: {problem}" for key, problem in problems)
            raise ConfigError("; ".join(lines))
        return config

    @classmethod
    def from_json(cls, data: Any) -> CheckpointConfig:
        """The configuration in the JSON of dataclasses.asdict(). It is not validated again.

        Raises:
            ConfigError: it is not the JSON of a configuration.
        """
        try:
            sections = {name: _SECTIONS[name](**data[name]) for name in _SECTIONS if data.get(name) is not None}
            return cls(**{**data, **sections})
        except (AttributeError, TypeError) as error:
            raise ConfigError(f"checkpoint: not a configuration as JSON: {error}") from None

    @property
    def lower(self) -> dict[str, TierSection]:
        """The configured tiers below memory by name, nearest first."""
        return {name: tier for name in LOWER if (tier := getattr(self, name)) is not None}

    @property
    def best(self) -> Best | None:
        """The metric by which steps are the best; None if no tier keeps any."""
        return next((tier.best for tier in self.lower.values() if tier.best), None)

    @property
    def slots(self) -> int:
        """The number of slots of a rank: `memory.keep`, plus one for each lower tier, whose flush may hold it."""
        return self.memory.keep + len(self.lower)


_SECTIONS: dict[str, Any] = {
    "memory": MemorySection, "redundancy": RedundancySection, "nvme": NvmeSection, "shared": SharedSection,
    "s3": S3Section,
}  # fmt: skip


def _problem(error: Any) -> tuple[str, str]:
    """The key of a pydantic error, and the problem."""
    place = [str(part) for part in error["loc"][:2]]  # what follows is the member of a union, or an item
    model = _SECTIONS[place[0]] if len(place) > 1 else CheckpointConfig
    keys: dict[str, Any] = {each.name: each.metadata for each in fields(model)}
    name, where = "".join(place[-1:]), ".".join(place)
    if error["type"] == "unexpected_keyword_argument":
        near = difflib.get_close_matches(name, keys, n=1)
        return where, f"unknown key, {f'did you mean {near[0]}?' if near else 'known keys: ' + ', '.join(keys)}"
    expected = keys.get(name, {}).get("expected") or error["msg"].removeprefix("Input should be ")
    got = "missing" if error["type"] == "missing" else f"got {error['input']!r:.200}"
    return where, f"{got}, expected {expected}"


def _broken_rules(config: CheckpointConfig, data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name in data.keys() & _SECTIONS.keys():
        section = getattr(config, name)
        for rule in getattr(section, "rules", ()):
            yield from ((f"{name}.{key}", problem) for key, problem in rule(section, data[name]))
    for rule in config.rules:
        yield from rule(config, data)


@dataclass(frozen=True, kw_only=True)
class Place:
    """The place of this process: the run, the attempt, the node and its memory directory.

    `generation` numbers the agent worlds of an attempt. Each world above 0 has replaced a lost one.
    """

    run_id: str
    attempt: int
    node: str
    nodes: tuple[str, ...]  # training nodes, in the order of their ranks
    ranks_per_node: int
    ram_dir: Path
    holders: tuple[str, ...] = ()  # nodes that do not train, but serve the shards in their memory until they leave
    domains: tuple[str, ...] = ()  # each node's failure domain, in the order of `nodes`; empty: not known
    job: str = ""  # Slurm's job id, for messages
    owner: Owner = NOBODY  # who saves
    generation: int = 0
    run_pid: int = 0  # pid of the process on node rank 0 with which the run ends; 0: none
    ended_command: tuple[str, ...] = ()  # exits with 0 if the run with the given id has ended; empty: unknown
    modules: Path | None = None  # where the node's first worker writes what it has loaded; None: nowhere

    @property
    def members(self) -> tuple[str, ...]:
        """All nodes with an agent, in the order of node ranks: training nodes, then holders."""
        return (*self.nodes, *self.holders)

    @property
    def node_rank(self) -> int:
        return self.members.index(self.node)

    @property
    def is_holder(self) -> bool:
        """Whether this node does not train."""
        return self.node not in self.nodes

    @property
    def who(self) -> str:
        """The run's name in messages."""
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
            nodes = tuple(env[Variable.NODES].split(","))
            holders = tuple(env[Variable.HOLDERS].split(",")) if env.get(Variable.HOLDERS) else ()
            node = env.get(Variable.NODE) or env["SLURMD_NODENAME"]
            given = {Variable.GENERATION: "0", Variable.RUN_PID: "0", **env}
            place = cls(
                run_id=_matching(env, Variable.RUN_ID, _RUN_ID, "letters, digits, '_', '.', '-'"),
                attempt=int(_matching(env, Variable.ATTEMPT, _WHOLE, "a whole number")), node=node, nodes=nodes,
                ranks_per_node=int(_matching(env, Variable.RANKS_PER_NODE, _POSITIVE, "a number of at least 1")),
                ram_dir=Path(_matching(env, Variable.RAM_DIR, _ABSOLUTE, "an absolute path")), holders=holders,
                domains=tuple(env[Variable.DOMAINS].split(",")) if env.get(Variable.DOMAINS) else (),
                job=env.get("SLURM_JOB_ID", ""), owner=owner_of(env), ended_command=_command(env, Variable.RUN_ENDED),
                generation=int(_matching(given, Variable.GENERATION, _WHOLE, "a whole number")),
                run_pid=int(_matching(given, Variable.RUN_PID, _WHOLE, "a whole number")),
                modules=Path(env[Variable.MODULES]) if env.get(Variable.MODULES) else None,
            )  # fmt: skip
        except KeyError as error:
            raise ConfigError(
                f"environment: {error.args[0]} is not set; run the script with `holdfast run` or `holdfast submit`, "
                "or construct Checkpointer(...) with explicit arguments"
            ) from None
        names = f"{Variable.NODES}={','.join(nodes)}" + (f" {Variable.HOLDERS}={','.join(holders)}" if holders else "")
        if len(set(place.members)) != len(place.members):
            raise ConfigError(f"environment: {names} names a node twice")
        if place.domains and len(place.domains) != len(nodes):
            raise ConfigError(
                f"environment: {Variable.DOMAINS} names {len(place.domains)} domains, expected one for each of "
                f"{len(nodes)} {Variable.NODES}"
            )
        if node not in place.members:
            raise ConfigError(f"environment: {Variable.NODE}={node!r} is not in {names}")
        return place


def environment_of(place: Place, config: CheckpointConfig) -> dict[str, str]:
    """The HOLDFAST_* variables that `Place.from_env` and `config_from_env` read, for agents without a launcher."""
    return {
        Variable.RUN_ID: place.run_id, Variable.ATTEMPT: str(place.attempt),
        Variable.NODES: ",".join(place.nodes), Variable.RANKS_PER_NODE: str(place.ranks_per_node),
        Variable.RAM_DIR: str(place.ram_dir),
        Variable.CHECKPOINT: json.dumps({k: v for k, v in asdict(config).items() if v is not None}),
        Variable.SCRIPT: place.owner.script,
        **({Variable.NODE: place.node} if len(place.nodes) == 1 else {}),
    }  # fmt: skip


def owner_of(env: Mapping[str, str]) -> Owner:
    """This user, and the job and script that the launcher names."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = str(os.getuid())
    return Owner(name=env.get(Variable.JOB_NAME, ""), script=env.get(Variable.SCRIPT, ""), user=user)


def _command(env: Mapping[str, str], name: str) -> tuple[str, ...]:
    try:
        argv = json.loads(env.get(name) or "[]")
    except ValueError as error:
        raise ConfigError(f"environment: {name} is not JSON: {error}") from None
    if not isinstance(argv, list) or not all(isinstance(word, str) for word in argv):
        raise ConfigError(f"environment: {name}={env[name]!r:.200}, expected a list of words in JSON")
    return tuple(argv)


def config_from_env(env: Mapping[str, str]) -> CheckpointConfig:
    """The `checkpoint:` section from HOLDFAST_CHECKPOINT, which the launcher sets."""
    try:
        section = json.loads(env[Variable.CHECKPOINT])
    except KeyError:
        raise ConfigError(
            f"environment: {Variable.CHECKPOINT} is not set; add a `checkpoint:` section to the job file"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"environment: {Variable.CHECKPOINT} is not JSON: {error}") from None
    return CheckpointConfig.from_json(section)


def workers_config(given: Mapping[str, Any] | CheckpointConfig, agents: CheckpointConfig) -> CheckpointConfig:
    """The configuration of a worker under a launcher: that of the agents, except the worker's own `memory.every_steps`.

    Args:
        given: the script's configuration; missing keys are taken from the agents.

    Raises:
        ConfigError: the script's configuration differs from the agents', or is not valid.
    """
    if not given:
        return agents
    theirs = _flat(asdict(agents))
    if isinstance(given, CheckpointConfig):
        mine = _flat(asdict(given))
        named = set(mine) | set(theirs)
    else:
        ours = CheckpointConfig.from_mapping({"namespace": agents.namespace, **given}, where="Checkpointer")
        mine, named = _flat(asdict(ours)), set(_flat(given))
    for key in sorted(named - {"memory.every_steps"}):
        if mine.get(key) != theirs.get(key):
            raise ConfigError(
                f"Checkpointer.{key}: got {mine.get(key)!r}, but the agents of this job were started with "
                f"{theirs.get(key)!r}; change the job file's `checkpoint` section, or leave the argument out"
            )
    every_steps = mine["memory.every_steps"] if "memory.every_steps" in named else agents.memory.every_steps
    return replace(agents, memory=replace(agents.memory, every_steps=every_steps))


def _flat(section: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a configuration, joined with dots."""
    flat: dict[str, Any] = {}
    for key, value in section.items():
        flat |= {f"{key}.{name}": each for name, each in value.items()} if isinstance(value, Mapping) else {key: value}
    return flat


def _matching(env: Mapping[str, str], name: str, pattern: re.Pattern[str], expected: str) -> str:
    if not pattern.fullmatch(env[name]):
        raise ConfigError(f"environment: {name}={env[name]!r:.200}, expected {expected}")
    return env[name]
