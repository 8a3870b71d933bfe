"""The job file: what to run, on how many nodes, and what to keep. Validated once, here, before anything is submitted.

Relative paths (`script`, `checkpoint.shared.path`) count from the job file's folder, so a job means the same wherever
it is submitted from.
"""

from __future__ import annotations

import dataclasses
import difflib
import glob
import importlib.util
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from launcher.errors import UsageError
from launcher.fabric import MODES
from lifecycle import LifecycleError
from lifecycle.settings.yaml_file import read_yaml
from slurm import SlurmError
from slurm.time_limit import NOTATIONS, time_limit_min

MAX_NODES = 1 << 16  # Slurm has no more in one cluster
MAX_WORKERS_PER_NODE = 64  # rows of a node's board, where workers post their steps
MIN_HANG_TIMEOUT_S = 2.0  # runners report twice a second

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SBATCH_OPTION = re.compile(r"[a-z][a-z0-9]+(-[a-z0-9]+)*")
_GPUS = re.compile(r"(?:(?P<type>[A-Za-z0-9_.-]+):)?(?P<count>\d+)")
_GRES_GPUS = re.compile(r"gpu(?::(?!\d+$)(?P<type>[^:]+))?(?::(?P<count>\d+))?")
_TIME_LIMIT_SIGNAL = re.compile(r"(B:)?((SIG)?USR[12]|10|12)(@\d+)?")

# What the job file has a word of its own for, or what a supervised job cannot do without.
OWNED_SBATCH_OPTIONS = {
    "nodes": "set `nodes` and `spares` in the job file",
    "ntasks": "set `workers_per_node` in the job file",
    "ntasks-per-node": "set `workers_per_node` in the job file",
    "gpus-per-node": "set `gpus_per_node` in the job file",
    "gpus": "every node needs as many: set `gpus_per_node` in the job file",
    "gpus-per-task": "a node's workers share its GPUs: set `gpus_per_node` in the job file",
    "job-name": "set `name` in the job file",
    "array": "submit one job per configuration",
    "output": "logs are kept in the job's folder",
    "error": "logs are kept in the job's folder",
    "open-mode": "logs are kept in the job's folder",
    "wrap": "the job file names the script",
    "no-requeue": "set `restart.max_restarts: 0` to give up at the first fault",
}
_NOT_YET = {
    f"elastic.{key}": "leave it out: a job shrinks when it loses nodes, and has all its nodes again after a requeue"
    for key in ("max_nodes", "scaling_timeout_s", "graceful_shutdown_timeout_s", "faulty_scale_down_timeout_s")
}


@dataclass(frozen=True, kw_only=True)
class Restart:
    """When to start again, and when to give up.

    Attributes:
        max_without_progress: give up after so many attempts in a row that gained no step.
        max_restarts: give up after so many restarts in all.
        hang_timeout_s: workers that make no step for so long hang; 0 never takes them for hung, None goes by the steps
            measured (`launcher.supervisor.hang`).
    """

    max_without_progress: int = 3
    max_restarts: int = 100
    hang_timeout_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Elastic:
    """How far a job may shrink where nodes are lost and no spare is left.

    Attributes:
        min_nodes: it trains on no fewer nodes.
        step: it gives up so many nodes at a time (a model that is cut over two nodes shrinks by two).
    """

    min_nodes: int
    step: int = 1


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """One validated job.

    Attributes:
        name: the job's name, also the default checkpoint namespace.
        script: absolute path of the training script.
        args: the script's arguments.
        nodes: nodes that train.
        spares: further nodes, kept warm to replace lost ones.
        gpus_per_node: GPUs to ask for on each node, of one type where that is said (a100:8), as the site's gres says
            where `slurm` has one; 0 trains on CPU.
        workers_per_node: processes of the script on each node; one per GPU unless told, at least 1.
        env: variables added to the workers' environment.
        restart: when to give up.
        elastic: how far it may shrink; None keeps its size.
        checkpoint: the section that ckpt reads, with its defaults filled in; None keeps no checkpoint.
        slurm: further sbatch options by long name with dashes; True stands for a flag without value.
        fabric: on nodes with EFA: "require" stops the job where NCCL does not use it, "prefer" tells of it, "any"
            leaves NCCL alone.
        preload: modules that are loaded once on each node, before the script: a restart need not load them again.
        progress: pattern of the script's own checkpoint files: an attempt that writes a newer one has made progress.
        time: Slurm's time limit, as sbatch's --time takes it; None leaves it to the partition. The local cluster has no
            limit.
    """

    name: str
    script: Path
    args: tuple[str, ...] = ()
    nodes: int = 1
    spares: int = 0
    gpus_per_node: int | str = 0
    workers_per_node: int = 1
    env: Mapping[str, str] = field(default_factory=dict)
    restart: Restart = Restart()
    elastic: Elastic | None = None
    checkpoint: Mapping[str, Any] | None = None
    slurm: Mapping[str, str | Literal[True]] = field(default_factory=dict)
    fabric: str = "prefer"
    preload: tuple[str, ...] = ()
    progress: str | None = None
    time: str | None = None

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any], base_dir: Path, source: str = "job") -> JobSpec:
        """Validates a job given as plain data.

        Args:
            mapping: the job file's keys; to_mapping() of a JobSpec is one.
            base_dir: folder that relative paths count from.
            source: what to call the mapping in errors, usually the job file's name.

        Raises:
            UsageError: an unknown key (the nearest known one is named), a wrong type or value, a missing script.
        """
        return _Reader(mapping, base_dir.absolute(), source).job()

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of nodes that it may train on, the largest first."""
        if self.elastic is None:
            return (self.nodes,)
        return tuple(range(self.nodes, self.elastic.min_nodes - 1, -self.elastic.step))

    @property
    def most_nodes(self) -> int:
        """Nodes to ask the scheduler for: those that train, and the spares."""
        return self.nodes + self.spares

    @property
    def least_nodes(self) -> int:
        """Nodes with which it can start."""
        return self.most_nodes if self.elastic is None else self.sizes[-1]

    def to_mapping(self) -> dict[str, Any]:
        """The job as JSON data; from_mapping() of it gives an equal JobSpec on any host that sees the same files."""
        mapping = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        mapping.update(
            script=str(self.script),
            args=list(self.args),
            preload=list(self.preload),
            env=dict(self.env),
            restart=dataclasses.asdict(self.restart),
            elastic=None if self.elastic is None else dataclasses.asdict(self.elastic),
            checkpoint=None if self.checkpoint is None else dict(self.checkpoint),
            slurm=dict(self.slurm),
        )
        return mapping


def load_job(path: Path | str) -> JobSpec:
    """Reads and validates a job file.

    Raises:
        UsageError: the file cannot be read, is not YAML, or does not describe a job.
    """
    path = Path(path)
    return JobSpec.from_mapping(read_job(path), path.absolute().parent, str(path))


def read_job(path: Path) -> Any:
    """Reads a job file, which is not yet validated.

    Raises:
        UsageError: the file cannot be read, or is not YAML.
    """
    try:
        return read_yaml(path, "a job file")
    except LifecycleError as error:
        raise UsageError(str(error)) from None


def check_sbatch_option(option: str, value: Any, where: str, nodes: int) -> None:
    """Refuses an sbatch option that would undo what a supervised job rests on.

    Args:
        option: long name with dashes.
        value: its value; True for a flag.
        where: how to name it in the error.
        nodes: that are to train.

    Raises:
        UsageError: the option is one that the job file sets in another way.
    """
    if option in OWNED_SBATCH_OPTIONS:
        instead = OWNED_SBATCH_OPTIONS[option]
        kind, colon, gpus = str(value).rpartition(":")  # of one type, say: a100:16
        if option == "gpus" and gpus.isdecimal() and int(gpus) % nodes == 0:
            each = f"{kind}{colon}{int(gpus) // nodes}"
            instead = f"set `gpus_per_node: {each}` in the job file, or submit with --gpus-per-node {each}"
        raise UsageError(f"{where}: not an option to pass on; {instead}")
    if option == "signal" and not _TIME_LIMIT_SIGNAL.fullmatch(str(value)):
        raise UsageError(f"{where}: got {value!r}, expected USR1@SECONDS or USR2@SECONDS, B: before it")


def gpu_count(gpus: int | str) -> int:
    """How many GPUs `gpus_per_node` says: 8 of a100:8."""
    return int(str(gpus).rpartition(":")[2])


def gpus_of_gres(gres: Any) -> int | str | None:
    """What of a --gres is GPUs, as `gpus_per_node` would say it; None where it asks for none.

    A --gres counts for each node, as `gpus_per_node` does: gpu:8, or gpu:a100:8,lustre:1.
    """
    found = [_GRES_GPUS.fullmatch(item.strip()) for item in str(gres or "").split(",")]
    gpus = [(each["type"], int(each["count"] or 1)) for each in found if each]
    if len(gpus) == 1 and gpus[0][0] and gpus[0][1]:
        return f"{gpus[0][0]}:{gpus[0][1]}"
    return sum(count for _, count in gpus) if gpus else None


class _Reader:
    """Takes one mapping apart, key by key."""

    def __init__(self, mapping: Mapping[str, Any], base_dir: Path, source: str) -> None:
        self._source = source
        self._base_dir = base_dir
        self._mapping = self._section(mapping, "", tuple(f.name for f in dataclasses.fields(JobSpec)))

    def job(self) -> JobSpec:
        script = self._script()
        name = self._name(script)
        nodes = self._count("nodes", 1, minimum=1, maximum=MAX_NODES)
        options = self._slurm(nodes)
        gpus_per_node = self._gpus(options.get("gres"))
        return JobSpec(
            name=name,
            script=script,
            args=self._args(),
            nodes=nodes,
            spares=self._count("spares", 0, minimum=0, maximum=MAX_NODES),
            gpus_per_node=gpus_per_node,
            workers_per_node=self._count(
                "workers_per_node", max(1, gpu_count(gpus_per_node)), minimum=1, maximum=MAX_WORKERS_PER_NODE
            ),
            env=self._env(),
            restart=self._restart(),
            elastic=self._elastic(nodes),
            checkpoint=self._checkpoint(name),
            slurm=options,
            fabric=self._fabric(),
            preload=self._preload(),
            progress=self._progress(),
            time=self._time(options.get("time")),
        )

    def _gpus(self, gres: Any) -> int | str:
        """As `gpus_per_node` says, or a --gres among Slurm's options; where both speak of GPUs they have to agree."""
        asked = gpus_of_gres(gres)
        value = self._mapping.get("gpus_per_node", 0 if asked is None else asked)
        if isinstance(value, str) and value.isdecimal():  # a command line's
            value = int(value)
        found = None if isinstance(value, bool) else _GPUS.fullmatch(str(value))
        if not found or int(found["count"]) > MAX_WORKERS_PER_NODE or (found["type"] and not int(found["count"])):
            where = "slurm.gres" if value is asked else "gpus_per_node"
            expected = f"a whole number, from 0 to {MAX_WORKERS_PER_NODE}, or a type and a number such as a100:8"
            raise self._wrong(where, value, expected)
        if asked not in (None, value):
            raise self._error("gpus_per_node", f"got {value}, and slurm.gres asks for {gres}; leave one of them out")
        return value

    def _time(self, of_slurm: str | Literal[True] | None) -> str | None:
        """The time limit by `time`; `slurm.time` is passed on as any option is, and then `time` has to be absent."""
        value = self._mapping.get("time")
        if value is not None and of_slurm is not None:
            raise self._error("time", "slurm.time is given too; leave one of them out")
        for where, limit in (("time", value), ("slurm.time", of_slurm)):
            if limit is None:
                continue
            try:
                if isinstance(limit, bool):
                    raise SlurmError(f"got {limit}, expected {NOTATIONS}")
                time_limit_min(str(limit))
            except SlurmError as error:
                raise self._error(where, str(error)) from None
        return None if value is None else str(value)

    def _script(self) -> Path:
        value = self._mapping.get("script")
        if not isinstance(value, str) or not value:
            raise self._wrong("script", value, "the path of a Python script")
        script = self._base_dir / value
        if not script.is_file():
            raise self._error("script", f"no file {script}; relative paths count from the job file's folder")
        return script

    def _name(self, script: Path) -> str:
        value = self._mapping.get("name", re.sub(r"[^A-Za-z0-9_.-]|^[^A-Za-z0-9]", "x", script.stem)[:128])
        if not isinstance(value, str) or not _NAME.fullmatch(value):
            raise self._wrong("name", value, "letters, digits, '_', '.', '-' (128 at most)")
        return value

    def _args(self) -> tuple[str, ...]:
        values = self._mapping.get("args", [])
        if not isinstance(values, list | tuple):
            raise self._wrong("args", values, "a list")
        for index, value in enumerate(values):
            if not _is_word(value):
                raise self._wrong(f"args[{index}]", value, "a string or a number; put it in quotes")
        return tuple(str(value) for value in values)

    def _env(self) -> dict[str, str]:
        env = {}
        for name, value in self._section(self._mapping.get("env"), "env").items():
            if not isinstance(name, str) or not _ENV_NAME.fullmatch(name):
                raise self._error(f"env.{name}", "not a variable's name; expected letters, digits and '_'")
            if name.startswith("HOLDFAST_"):
                raise self._error(f"env.{name}", "HOLDFAST_ variables are set by the launcher; choose another name")
            if not _is_word(value):
                raise self._wrong(f"env.{name}", value, "a string or a number; put it in quotes")
            env[name] = str(value)
        return env

    def _restart(self) -> Restart:
        known = tuple(f.name for f in dataclasses.fields(Restart))
        section = self._section(self._mapping.get("restart"), "restart", known)
        default = Restart()
        return Restart(
            max_without_progress=self._count("restart.max_without_progress", default.max_without_progress, 1, section),
            max_restarts=self._count("restart.max_restarts", default.max_restarts, 0, section),
            hang_timeout_s=self._hang_timeout_s(section.get("hang_timeout_s")),
        )

    def _elastic(self, nodes: int) -> Elastic | None:
        if self._mapping.get("elastic") is None:
            return None
        section = self._section(self._mapping["elastic"], "elastic", tuple(f.name for f in dataclasses.fields(Elastic)))
        return Elastic(
            min_nodes=self._count("elastic.min_nodes", 0, 1, section, maximum=nodes),
            step=self._count("elastic.step", Elastic.step, 1, section, maximum=nodes),
        )

    def _hang_timeout_s(self, value: Any) -> float | None:
        if value is None:
            return None
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not (value == 0 or MIN_HANG_TIMEOUT_S <= value < math.inf):
            expected = f"seconds, at least {MIN_HANG_TIMEOUT_S:g}; 0 for never; or nothing: by the steps measured"
            raise self._wrong("restart.hang_timeout_s", value, expected)
        return value

    def _checkpoint(self, name: str) -> dict[str, Any] | None:
        if self._mapping.get("checkpoint") is None:
            return None
        from ckpt import CheckpointConfig, CheckpointError

        section = {"namespace": name, **self._section(self._mapping["checkpoint"], "checkpoint")}
        for key in section:
            self._refuse_planned(f"checkpoint.{key}")
        try:
            config = dataclasses.asdict(CheckpointConfig.from_mapping(section, f"{self._source}: checkpoint"))
        except CheckpointError as error:
            raise UsageError(_one_line(str(error))) from None
        if config["s3"] and importlib.util.find_spec("boto3") is None:
            raise self._error("checkpoint.s3", "needs boto3, which is not installed; pip install 'holdfast-hpc[s3]'")
        if config["shared"]:
            config["shared"]["path"] = str(self._base_dir / config["shared"]["path"])
        return config

    def _slurm(self, nodes: int) -> dict[str, str | Literal[True]]:
        options: dict[str, str | Literal[True]] = {}
        for key, value in self._section(self._mapping.get("slurm"), "slurm").items():
            where = f"slurm.{key}"
            option = str(key).replace("_", "-")
            if not _SBATCH_OPTION.fullmatch(option):
                raise self._error(where, "not a long sbatch option; expected a name such as partition or mem-per-cpu")
            if not isinstance(value, str | int | float) or (isinstance(value, str) and not value.isprintable()):
                raise self._wrong(where, value, "a string, a number or true")
            if value is False:
                continue
            check_sbatch_option(option, value, f"{self._source}: {where}", nodes)
            options[option] = True if value is True else str(value)
        return options

    def _fabric(self) -> str:
        value = self._mapping.get("fabric", "prefer")
        if value not in MODES:
            raise self._wrong("fabric", value, f"one of {', '.join(MODES)}")
        return str(value)

    def _preload(self) -> tuple[str, ...]:
        names = self._mapping.get("preload") or []
        if not isinstance(names, list | tuple):
            raise self._wrong("preload", names, "a list of modules, such as [transformers]")
        for index, name in enumerate(names):
            if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
                raise self._wrong(f"preload[{index}]", name, "a module's name, such as torch.nn")
        return tuple(names)

    def _progress(self) -> str | None:
        pattern = self._mapping.get("progress")
        if pattern is None:
            return None
        if not isinstance(pattern, str) or not pattern or "\0" in pattern:
            raise self._wrong("progress", pattern, "a pattern of files, such as out/ckpt*.pt")
        return os.path.join(glob.escape(str(self._base_dir)), pattern)

    def _section(self, value: Any, where: str, known: tuple[str, ...] = ()) -> Mapping[str, Any]:
        """A (sub-)mapping, absent if null; with `known`, only those keys may appear."""
        if value is None and where:
            return {}
        if not isinstance(value, Mapping):
            raise self._wrong(where, value, "a mapping (key: value)")
        for key in value if known else ():
            dotted = f"{where}.{key}" if where else str(key)
            self._refuse_planned(dotted)
            if key not in known:
                near = difflib.get_close_matches(str(key), known, n=1)
                raise self._error(
                    dotted, f"unknown key, {f'did you mean {near[0]}?' if near else 'known keys: ' + ', '.join(known)}"
                )
        return value

    def _count(
        self,
        where: str,
        default: int,
        minimum: int,
        section: Mapping[str, Any] | None = None,
        maximum: int | None = None,
    ) -> int:
        value = (self._mapping if section is None else section).get(where.rpartition(".")[2], default)
        too_large = maximum is not None and isinstance(value, int) and value > maximum
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum or too_large:
            limit = f"at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
            raise self._wrong(where, value, f"a whole number, {limit}")
        return value

    def _refuse_planned(self, where: str) -> None:
        if where in _NOT_YET:
            raise self._error(where, f"not supported yet; {_NOT_YET[where]}")

    def _wrong(self, where: str, value: Any, expected: str) -> UsageError:
        shown = "nothing" if value is None else repr(value)
        return self._error(where, f"got {shown if len(shown) <= 80 else shown[:77] + '...'}, expected {expected}")

    def _error(self, where: str, message: str) -> UsageError:
        return UsageError(_one_line(f"{self._source}: {where}: {message}" if where else f"{self._source}: {message}"))


def _is_word(value: Any) -> bool:
    """Whether a program can be given this as an argument or in its environment."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return False
    try:
        return b"\0" not in str(value).encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which YAML lets pass
        return False


def _one_line(text: str) -> str:
    return " ".join(text.split())
