"""The job file: script, number of nodes, restarts, checkpoints. It is validated once, before anything is submitted.

Relative paths (`script`, `checkpoint.shared.path`) are relative to the job file's folder, not to the working directory;
`progress` is relative to the working directory, in which the script runs. `~` and variables in paths are expanded.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ckpt import CheckpointConfig, CheckpointError
from holdfast.base.environment import PREFIX
from holdfast.settings.errors import SettingsError
from holdfast.settings.keys import key
from launcher.diagnosis import FaultClass
from launcher.errors import LauncherError, UsageError
from launcher.job import gpus
from launcher.job.elastic import (
    BOOSTER_OPTIONS,
    MAX_NODES,
    BoosterSection,
    Elastic,
    all_sizes_are_numbers,
    booster_nodes_of,
    contradictions,
    problems_in_job,
    sizes_of,
)
from launcher.job.job_paths import with_paths_expanded
from launcher.job.log_rules import LogRule
from launcher.job.notify import Metrics, Notify
from launcher.job.program import is_shell_script, name_and_check
from launcher.job.sbatch_options import OWNED_SBATCH_OPTIONS, Options, normal_options, option_problems
from launcher.job.straggler import StragglerSection
from slurm import SlurmError
from slurm.time_limit import NOTATIONS, time_limit_min

_NO_LIMIT = 1_000_000  # restarts, because torch needs a number
_BLIND_RESTARTS = 100
MIN_HANG_TIMEOUT_S = 2.0  # runners report twice a second

_NAME = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$"
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, kw_only=True)
class Restart:
    """When to start again, and when to give up."""

    max_without_progress: int = key(
        "Give up after this number of attempts in a row that gained no step.", default=3, ge=1, unit="attempts",
        example=5,
    )  # fmt: skip
    max_restarts: int | None = key(
        "Give up after this number of restarts in all.",
        default=None,
        ge=0,
        derived="no limit where progress is seen, by `checkpoint` or `progress`; else 100",
        unit="restarts",
        example=10,
    )
    hang_timeout_s: float | None = key(
        "Workers that finish no step in this time count as hung; 0 turns the detection off.",
        default=None,
        ge=0,
        allow_inf_nan=False,
        expected=f"seconds, at least {MIN_HANG_TIMEOUT_S:g}; 0 for never; or nothing: by the steps measured",
        derived="by the steps measured",
        unit="s",
        example=300,
    )

    on: Mapping[str, Literal["stop", "retry", "swap", "requeue"]] = key(
        "What follows a fault of a class; `holdfast why` names the class of each fault. stop ends the job, swap "
        "replaces the node at fault by a spare, requeue requeues the job, retry starts the workers again even after "
        "the same error twice. docs/guide/why.md lists the classes and their defaults.",
        default={},
        expected="one of stop, retry, swap, requeue",
        example="{loss: stop, host_memory: swap}",
    )

    def _classes_exist(self, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        for name in self.on:
            if name not in tuple(FaultClass):
                yield f"on.{name}", f"not a class of faults; expected one of {', '.join(FaultClass)}"

    def _hang_timeout_is_measurable(self, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        if self.hang_timeout_s and self.hang_timeout_s < MIN_HANG_TIMEOUT_S:
            yield (
                "hang_timeout_s",
                (
                    f"got {given['hang_timeout_s']}, expected seconds, at least {MIN_HANG_TIMEOUT_S:g}; 0 for never; "
                    "or nothing: by the steps measured"
                ),
            )

    rules = (_classes_exist, _hang_timeout_is_measurable)


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """One validated job."""

    name: str = key(
        "The job's name, also the default checkpoint namespace.",
        pattern=_NAME,
        expected="letters, digits, '_', '.', '-' (128 at most)",
        derived="the script's or the module's name; required with `command`",
        example="gpt",
    )
    script: Path | None = key(
        "The training script; a relative path counts from the job file's folder. Or give `module` or `command`.",
        default=None,
        expected="the path of a Python script",
        example="train.py",
    )
    module: str | None = key(
        "A module to run as `python -m` does, instead of `script`. It is looked for in the working directory, in "
        "PYTHONPATH and among the installed ones.",
        default=None,
        expected="a module's name, such as pkg.train",
        example="pkg.train",
    )
    command: tuple[str, ...] = key(
        "A program and its arguments, to run instead of `script` in each worker; `args` follow them. Relative paths "
        "count from the working directory.",
        default=(),
        free_text=True,
        expected="a string or a number; put it in quotes",
        example="[bash, run.sh]",
    )
    args: tuple[str, ...] = key(
        "Arguments of the script.",
        default=(),
        free_text=True,
        expected="a string or a number; put it in quotes",
        example="[--lr, 3e-4]",
    )
    nodes: int = key("Nodes that train.", default=1, ge=1, le=MAX_NODES, unit="nodes", example=4)
    spares: int = key(
        "Further nodes, kept warm to replace lost ones.", default=0, ge=0, le=MAX_NODES, unit="nodes", example=1
    )
    gpus_per_node: int | str = key(
        "GPUs of each node, of one type where it is named; 0 trains on the CPU. auto takes those of `slurm.gres`; "
        "without it, on the local cluster this machine's, divided among the nodes, and inside a Slurm job the job's.",
        default="auto",
        expected=gpus.EXPECTED,
        unit="GPUs",
        example="a100:8",
    )
    workers_per_node: int = key(
        "Processes of the script on each node.",
        default=1,
        ge=1,
        le=gpus.MAX_PER_NODE,
        derived="one for each GPU, at least 1",
        unit="processes",
        example=8,
    )
    env: Mapping[str, str] = key(
        "Variables added to the environment of workers and checkpoint agents.",
        default={},
        free_text=True,
        expected="a string or a number; put it in quotes",
        example="{OMP_NUM_THREADS: 8}",
    )
    restart: Restart = key("When to start again, and when to give up.", default=Restart())
    log_rules: tuple[LogRule, ...] = key(
        "What follows lines that workers write.", default=(), example="[{pattern: loss is nan, action: stop}]"
    )
    straggler: StragglerSection = key(
        "Ranks that are slow while they train, and for which the others wait.", default=StragglerSection()
    )
    elastic: Elastic | None = key(
        "The sizes between which the job shrinks and grows. Without this section the size is fixed.", default=None
    )
    checkpoint: CheckpointConfig | None = key(
        "Checkpoints and their tiers. Without this section nothing is saved.", default=None
    )
    slurm: Mapping[str, str | Literal[True]] = key(
        "Further sbatch options by long name; true is a flag without value.",
        default={},
        expected="a string, a number or true",
        example="{partition: train, mem: 64G, exclusive: true}",
    )
    fabric: Literal["require", "prefer", "any"] = key(
        "On nodes with EFA: require stops the job where NCCL does not use it, prefer reports it, any does nothing.",
        default="prefer",
        example="require",
    )
    notify: Notify | None = key(
        "Who is told about faults, requeues and the end. Without this section nobody is told.", default=None
    )
    metrics: Metrics | None = key("Where the running job puts its metrics for Prometheus.", default=None)
    preload: tuple[str, ...] = key(
        "Modules, and names in modules, that each node imports once, so that a restart does not import them again.",
        default=(),
        expected="a module's name, such as torch.nn",
        example="[lightning, transformers.Trainer]",
    )
    learn_preload: bool = key(
        "Whether the modules that the script itself loads by its second step are remembered, in the user's cache, and "
        "imported once by each node, as those of preload.",
        default=True,
        example="false",
    )
    progress: str | None = key(
        "Pattern of the script's own checkpoint files: an attempt that writes a newer one has made progress. A "
        "relative pattern counts from the directory in which the script runs, as the script's own relative paths do.",
        default=None,
        pattern="^.+$",
        expected="a pattern of files, such as out/ckpt*.pt",
        example="out/ckpt*.pt",
    )
    time: str | None = key(
        "Slurm's time limit, in the notation of sbatch's --time. The local cluster has no limit.",
        default=None,
        expected=NOTATIONS,
        derived="the partition's",
        unit="minutes",
        example="1-12:00:00",
    )

    @classmethod
    def from_mapping(
        cls,
        mapping: Any,
        base_dir: Path,
        source: str = "job",
        overrides: Mapping[str, Any] | None = None,
        auto_gpus: gpus.OfEachNode = gpus.not_here,
    ) -> JobSpec:
        """Validate a job that is given as plain data.

        Args:
            mapping: the keys of a job file.
            base_dir: the folder to which relative paths are relative.
            source: name of the mapping in errors, usually the job file's name.
            overrides: keys from the command line, which override those of `mapping`; in `slurm`, option by option.
            auto_gpus: finds the GPUs of each node for `gpus_per_node: auto`.

        Raises:
            UsageError: the job is not valid. One line for each unknown key, wrong type or value, or missing script.
        """
        from holdfast.settings.validation import validated

        data, found = _filled_in(_overridden(mapping, overrides or {}), base_dir)
        sources = {name: "command line" for name in overrides or {} if name != "slurm"}
        try:
            spec = validated(cls, data, found, source=source, sources=sources)
        except SettingsError as error:
            raise UsageError(str(error)) from None
        if spec.gpus_per_node == "auto":
            spec = dataclasses.replace(spec, gpus_per_node=auto_gpus(spec.sizes[0]))
        if "workers_per_node" not in data:
            spec = dataclasses.replace(spec, workers_per_node=max(1, gpus.count(spec.gpus_per_node)))
        checkpoint = spec.checkpoint
        if checkpoint and checkpoint.shared:
            path = str(base_dir.absolute() / checkpoint.shared.path)
            checkpoint = dataclasses.replace(checkpoint, shared=dataclasses.replace(checkpoint.shared, path=path))
        script = None if spec.script is None else base_dir.absolute() / spec.script
        return dataclasses.replace(spec, script=script, checkpoint=checkpoint)

    def _sizes_fit(self, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        if self.elastic and all_sizes_are_numbers(given["elastic"]) and not any(contradictions(self.elastic)):
            yield from problems_in_job(self.elastic, self.nodes)

    def _variables_have_names(self, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        for name in self.env:
            if not _ENV_NAME.fullmatch(name):
                yield f"env.{name}", "not a variable's name; expected letters, digits and '_'"
            elif name.startswith(PREFIX):
                yield f"env.{name}", "HOLDFAST_ variables are set by the launcher; choose another name"

    def _preloads_are_modules(self, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        for name in self.preload:
            if not all(part.isidentifier() for part in name.split(".")):
                yield "preload", f"got {name!r:.80}, expected a module's name, such as torch.nn"

    def _time_is_given_once(self, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        if self.time is not None and self.slurm.get("time") is not None:
            yield "time", "slurm.time is given too; leave one of them out"

    def _time_is_slurms(self, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        yield from _time_problem("time", self.time)

    def _slurm_time_is_slurms(self, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        yield from _time_problem("slurm.time", self.slurm.get("time"))

    rules = (
        _sizes_fit, _variables_have_names, _preloads_are_modules, _time_is_given_once,
        _time_is_slurms, _slurm_time_is_slurms,
    )  # fmt: skip

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of nodes on which the job may train, the largest first."""
        return sizes_of(self.elastic, self.nodes)

    @property
    def booster_nodes(self) -> int:
        """Number of nodes of each booster; 0 if the job does not grow."""
        return booster_nodes_of(self.sizes, self.nodes)

    @property
    def most_boosters(self) -> int:
        """Number of boosters with which the job has its largest size."""
        return (self.sizes[0] - self.nodes) // self.booster_nodes if self.booster_nodes else 0

    @property
    def booster_options(self) -> Options:
        """The sbatch options of a booster, by long name."""
        booster = self.elastic.booster if self.elastic else None
        options = (booster or BoosterSection()).options(self.slurm)
        asked = gpus.option(self.gpus_per_node, options.get("gres"))
        return options if asked is None else {"gpus-per-node": str(asked), **options}

    @property
    def max_restarts(self) -> int:
        """Number of restarts after which the job ends.

        Large jobs lose nodes for months. So if progress is visible there is no limit, and only
        `restart.max_without_progress` ends the job.
        """
        if self.restart.max_restarts is not None:
            return self.restart.max_restarts
        return _NO_LIMIT if self.checkpoint is not None or self.progress is not None else _BLIND_RESTARTS

    @property
    def most_nodes(self) -> int:
        """Number of nodes of the base: `nodes` and the spares. Boosters are separate Slurm jobs."""
        return self.nodes + self.spares

    @property
    def least_nodes(self) -> int:
        """Smallest number of nodes with which the job can start."""
        return self.most_nodes if self.elastic is None else self.sizes[-1]

    def to_json(self) -> dict[str, Any]:
        """The job as JSON data; from_json() of it gives an equal JobSpec on any host that sees the same files."""
        return {
            **dataclasses.asdict(self),
            "script": None if self.script is None else str(self.script),
            "command": list(self.command),
            "args": list(self.args),
            "preload": list(self.preload),
            "log_rules": [dataclasses.asdict(rule) for rule in self.log_rules],
        }

    @classmethod
    def from_json(cls, data: Any) -> JobSpec:
        """Make the job from the JSON of to_json(). The data are not validated again.

        Raises:
            LauncherError: the data are not from to_json().
        """
        try:
            optional: dict[str, Any] = {
                "elastic": Elastic.from_json,
                "checkpoint": CheckpointConfig.from_json,
                "notify": Notify.from_json,
                "metrics": lambda section: Metrics(**section),
            }
            sections: dict[str, Any] = {
                name: None if data[name] is None else made(data[name]) for name, made in optional.items()
            }
            sections |= {"restart": Restart(**data["restart"]), "straggler": StragglerSection(**data["straggler"])}
            sections |= {name: tuple(data[name]) for name in ("args", "command", "preload")}
            sections |= {"log_rules": tuple(LogRule(**rule) for rule in data["log_rules"])}
            script = None if data["script"] is None else Path(data["script"])
            return cls(**{**data, **sections, "script": script})
        except (AttributeError, KeyError, TypeError, CheckpointError) as error:
            raise LauncherError(f"not a job as holdfast writes it: {error!r:.200}; submit the job again") from None


def load_job(
    path: Path | str, overrides: Mapping[str, Any] | None = None, auto_gpus: gpus.OfEachNode = gpus.not_here
) -> JobSpec:
    """Reads and validates a job file.

    Args:
        path: the file.
        overrides: keys from the command line, which override those of the file.
        auto_gpus: finds the GPUs of each node for `gpus_per_node: auto`; the default is for a job in Slurm's queue.

    Raises:
        UsageError: the file cannot be read, is not YAML, or does not describe a job.
    """
    from holdfast.settings.yaml_file import read_yaml

    path = Path(path)
    if path.is_file() and (path.suffix == ".py" or is_shell_script(path)):
        kind = "Python" if path.suffix == ".py" else "shell"
        raise UsageError(
            f"{path}: is a {kind} script, expected a job file (YAML); `holdfast init` writes one: its `script` names a "
            "Python script, its `command` any other program"
        )
    try:
        found = read_yaml(path, "a job file")
    except SettingsError as error:
        raise UsageError(str(error)) from None
    return JobSpec.from_mapping(found, path.absolute().parent, str(path), overrides, auto_gpus)


def read_job(job_dir: Path) -> JobSpec:
    """Read the job in job.json of a job's folder.

    Raises:
        LauncherError: job.json cannot be read, or no supervisor has written it.
    """
    path = job_dir / "job.json"
    try:
        return JobSpec.from_json(json.loads(path.read_text()))
    except OSError as error:
        raise LauncherError(f"{path}: cannot be read ({error.strerror}); submit the job again") from None
    except (ValueError, RecursionError) as error:
        raise LauncherError(f"{path}: not JSON ({error}); submit the job again") from None
    except LauncherError as error:
        raise LauncherError(f"{path}: {error}") from None


def _time_problem(where: str, limit: str | bool | None) -> Iterator[tuple[str, str]]:
    try:
        time_limit_min("0" if limit is None else str(limit))
    except SlurmError as error:
        yield where, str(error)


def _overridden(mapping: Any, overrides: Mapping[str, Any]) -> Any:
    """The keys of a job file, overridden by those of the command line. GPUs in --gres override those of the file."""
    if not isinstance(mapping, Mapping):
        return mapping
    data, options = {**mapping, **overrides}, mapping.get("slurm") or {}
    if "slurm" in overrides and isinstance(options, Mapping):
        data["slurm"] = {**options, **overrides["slurm"]}
        if gpus.of_gres(overrides["slurm"].get("gres")) is not None and "gpus_per_node" not in overrides:
            data.pop("gpus_per_node", None)
    return data


def _is_shared_by_projects(checkpoint: Mapping[str, Any]) -> bool:
    """Whether checkpoints go to a place outside of the job file's folder: an absolute path, or a bucket."""
    shared = checkpoint.get("shared")
    path = shared.get("path") if isinstance(shared, Mapping) else None
    return bool(checkpoint.get("s3")) or (isinstance(path, str | os.PathLike) and os.path.isabs(path))


def _filled_in(mapping: Any, base_dir: Path) -> tuple[Any, Any]:
    """Adds the defaults that depend on other keys to a job file's keys; returns these and problems that were found."""
    if not isinstance(mapping, Mapping):
        return mapping, {}
    found: dict[tuple[str | int, ...], str] = {}
    data = with_paths_expanded(dict(mapping), found)
    name_and_check(data, base_dir, found)
    if isinstance(options := data.get("slurm"), Mapping):
        nodes = data.get("nodes", 1)
        problems = option_problems(options, nodes if isinstance(nodes, int) and nodes > 0 else 1)
        found |= {("slurm", name): problem for name, problem in problems}
        data["slurm"] = normal_options(options)
    try:
        gres = data["slurm"].get("gres") if isinstance(options, Mapping) else None
        asked = gpus.requested(data.get("gpus_per_node"), gres)
        data["gpus_per_node"] = "auto" if asked is None else asked
    except ValueError as error:
        where, _, problem = str(error).partition(": ")
        found[tuple(where.split("."))] = problem
        data.pop("gpus_per_node", None)
    if isinstance(elastic := data.get("elastic"), Mapping) and isinstance(elastic.get("booster"), Mapping):
        booster = dict(elastic["booster"])
        if isinstance(options := booster.get("slurm"), Mapping):
            problems = option_problems(options, 1, OWNED_SBATCH_OPTIONS | BOOSTER_OPTIONS)
            found |= {("elastic", "booster", "slurm", name): problem for name, problem in problems}
            booster["slurm"] = normal_options(options)
            asked, expected = gpus.of_gres(options.get("gres")), data.get("gpus_per_node")
            for problem in gpus.gres_problems(options.get("gres")):
                found["elastic", "booster", "slurm", "gres"] = problem
            if None not in (asked, expected) and asked != expected:
                found["elastic", "booster", "slurm", "gres"] = (
                    f"got {options['gres']}, expected the GPUs of the job's other nodes, gpus_per_node: {expected}"
                )
        data["elastic"] = {**elastic, "booster": booster}
    if isinstance(checkpoint := data.get("checkpoint"), Mapping):
        name = str(data["name"])
        if "name" not in mapping and "namespace" not in checkpoint and _is_shared_by_projects(checkpoint):
            found["checkpoint", "namespace"] = (
                "missing, expected it or `name`, because another project may have a script of this name, and save to "
                "the same place"
            )
        data["checkpoint"] = {"namespace": name if re.fullmatch(_NAME, name) else "x", **checkpoint}
        if isinstance(bucket := checkpoint.get("s3"), Mapping):
            is_s3 = str(bucket.get("url")).startswith("s3://")
            library, extra = ("boto3", "s3") if is_s3 else ("obstore", "cloud")
            if importlib.util.find_spec(library) is None:
                why = f"needs {library}, which is not installed; pip install 'holdfast-hpc[{extra}]'"
                found["checkpoint", "s3"] = why
    return data, found
