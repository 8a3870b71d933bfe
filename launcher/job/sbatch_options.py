"""The sbatch options that a job file or a command line may pass to sbatch, and those that Holdfast sets itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from launcher.errors import UsageError
from launcher.job import gpus

Options = dict[str, str | Literal[True]]  # by long name with dashes; True is a flag without value

_OPTION = re.compile(r"[a-z][a-z0-9]+(-[a-z0-9]+)*")
_TIME_LIMIT_SIGNAL = re.compile(r"(B:)?((SIG)?USR[12]|10|12)(@\d+)?")

# Options that have a key of their own in the job file, or that a supervised job must set itself.
OWNED_SBATCH_OPTIONS = {
    "nodes": "set `nodes` and `spares` in the job file",
    "ntasks": "set `workers_per_node` in the job file",
    "ntasks-per-node": "set `workers_per_node` in the job file",
    "gpus-per-node": "set `gpus_per_node` in the job file",
    "gpus": "every node needs as many: set `gpus_per_node` in the job file",
    "gpus-per-task": "a node's workers share its GPUs: set `gpus_per_node` in the job file",
    "gpus-per-socket": "set `gpus_per_node` in the job file",
    "job-name": "set `name` in the job file",
    "array": "submit one job per configuration",
    "output": "logs are kept in the job's folder",
    "error": "logs are kept in the job's folder",
    "open-mode": "logs are kept in the job's folder",
    "wrap": "the job file names the script",
    "no-requeue": "set `restart.max_restarts: 0` to give up at the first fault",
    "parsable": "Holdfast reads the job's id in sbatch's output; `holdfast submit --json` prints it",
    "quiet": "Holdfast reads the job's id in sbatch's output",
    "version": "`sbatch --version` prints Slurm's version",
    "usage": "`sbatch --usage` prints sbatch's options",
    "wait": "a job gets its options once sbatch has returned; `holdfast logs JOB -f` waits for a job's end",
    "clusters": "submit on a login node of that cluster",
}
# Options that no SBATCH_* variable may set: GPUs that it requests would not count.
NOT_FROM_ENVIRONMENT = (*OWNED_SBATCH_OPTIONS, "gres", "tres-per-task")


def normal_options(section: Mapping[Any, Any]) -> Options:
    """The options of a `slurm` section. Underscores become dashes, numbers become text; false removes an option."""
    options: Options = {}
    for key, value in section.items():
        if value is True or (isinstance(value, str | int | float) and value is not False):
            options[str(key).replace("_", "-")] = True if value is True else str(value)
    return options


def option_problems(
    section: Mapping[Any, Any], nodes: int, owned: Mapping[str, str] = OWNED_SBATCH_OPTIONS
) -> Iterator[tuple[str, str]]:
    """The problems of a `slurm` section, each as (key, problem).

    Args:
        section: the section as it is in the file.
        nodes: number of nodes that train.
        owned: options that are not passed to sbatch, and what to do instead.
    """
    for key, value in section.items():
        option = str(key).replace("_", "-")
        if not _OPTION.fullmatch(option):
            yield str(key), "not a long sbatch option; expected a name such as partition or mem-per-cpu"
        elif not isinstance(value, str | int | float) or not str(value).isprintable():
            shown = "nothing" if value is None else f"{value!r:.80}"
            yield str(key), f"got {shown}, expected a string, a number or true"
        elif value is not False and (problem := _refusal(option, value, nodes, owned)):
            yield str(key), problem


def check_sbatch_option(option: str, value: Any, where: str, nodes: int) -> None:
    """Refuse an sbatch option with which a supervised job cannot work.

    Args:
        option: long name with dashes.
        value: its value; True for a flag.
        where: name of the option in the error.
        nodes: number of nodes that train.

    Raises:
        UsageError: the option is one that the job file sets in another way.
    """
    if problem := _refusal(option, value, nodes, OWNED_SBATCH_OPTIONS):
        raise UsageError(f"{where}: {problem}")


def _refusal(option: str, value: Any, nodes: int, owned: Mapping[str, str]) -> str:
    if option in owned:
        instead = owned[option]
        if option == "gpus" and (each := gpus.each_of(value, nodes)):
            instead = f"set `gpus_per_node: {each}` in the job file, or submit with --gpus-per-node {each}"
        return f"not an option to pass on; {instead}"
    if option.startswith("tres-per-") and gpus.names_gpus(value):
        return f"got {value!r:.80}: it requests GPUs; set `gpus_per_node` in the job file"
    if option == "signal" and not _TIME_LIMIT_SIGNAL.fullmatch(str(value)):
        return f"got {value!r:.80}, expected USR1@SECONDS or USR2@SECONDS, B: before it"
    return ""
