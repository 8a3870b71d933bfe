"""Limits of a QOS, an account or a partition for which a job waits, as Slurm's reason names them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

# Each counts one job alone. It does not change while the job waits.
_ALONE = re.compile(r"Per(Job|Node)|MaxCpuPerNode|MaxWallDuration|^QOSMin|^Partition(Node|Time)Limit$|^QOSTimeLimit$")
_BARRED = ("InvalidQOS", "QOSNotAllowed", "AccountNotAllowed", "InvalidAccount")
_USED_UP = re.compile(r"^(?:QOS|Assoc)Grp\w*Minutes|^(?:QOS|Assoc)GrpWallLimit$|^QOSUsageThreshold$")
_SHARED = re.compile(r"^(QOS|Assoc)(?:Grp|Max|Job|Resource)|^Max\w+PerAccount$|^Association(?:Job|Resource)Limit$")
_ASSOCIATIONS = "sacctmgr show assoc tree format=Account,User,GrpTRES,GrpJobs,MaxJobs"
_TRES = re.compile(r"([a-z]+(?:/[\w.:-]+)?)=([0-9]+(?:\.[0-9]+)?)([KMGTP]?)")
_UNIT = {"": 1.0, "K": 2.0**10, "M": 2.0**20, "G": 2.0**30, "T": 2.0**40, "P": 2.0**50}

# The columns of sacctmgr that limit the resources of several jobs together, with the part of a reason that means each.
COLUMNS = {"GrpTRES": "Grp", "MaxTRESPU": "PerUser", "MaxTRESPA": "PerAccount"}

QosLimits = Mapping[str, Mapping[str, str]]  # a QOS's name -> column -> value, for the columns that it limits


def advice(reason: str, asked: str, limits: Callable[[], QosLimits]) -> str:
    """What a user can do about a limit; "" if the reason is none.

    Args:
        reason: Slurm's word for why a job is pending, for example QOSMaxNodePerUserLimit.
        asked: the resources for which the job asks, as Slurm prints them: "cpu=4,mem=250G,node=4,gres/gpu=8".
        limits: returns the limits of the job's QOS and of its partition's. Called only for a limit of several jobs
            together, of a QOS.
    """
    if _USED_UP.search(reason):
        return "the usage of past jobs is above this limit: it waits until Slurm forgets some of it; see sshare"
    if _ALONE.search(reason):
        return "the job's own request is beyond this limit, so it waits for ever: ask for less, or for another QOS"
    if reason in _BARRED:
        return "the job waits for ever: name a QOS and an account that its user and its partition may use"
    found = _SHARED.search(reason)
    if found is None:
        return ""
    if found[1] == "Assoc" or reason.startswith("Association"):
        return f"a limit of the account or one above it, for all its jobs together: {_ASSOCIATIONS}"
    told = [line for name, columns in limits().items() for line in _compared(name, columns, reason, asked)]
    return "; ".join(told) or "a limit for several jobs together: it starts when others have ended"


def _compared(name: str, columns: Mapping[str, str], reason: str, asked: str) -> list[str]:
    """For each column that the reason means: the limit, and whether the job alone is beyond it."""
    own, lines = tres(asked), []
    words = {word.partition("=")[0]: word for word in asked.split(",")}
    for column, part in COLUMNS.items():
        if part not in reason or column not in columns:
            continue
        beyond = [resource for resource, most in tres(columns[column]).items() if own.get(resource, 0.0) > most]
        limit = f"QOS {name} has {column} {columns[column]}"
        if beyond:
            wanted = ",".join(words[resource] for resource in beyond)
            lines.append(f"{limit}, the job asks for {wanted}, so it waits for ever: ask for less, or for another QOS")
        else:
            lines.append(f"{limit}, for several jobs together: it starts when others have ended")
    return lines


def tres(text: str) -> dict[str, float]:
    """Trackable resources by name; memory in bytes. Slurm prints memory without a unit in MiB."""
    return {
        name: float(count) * _UNIT[unit or ("M" if name == "mem" else "")] for name, count, unit in _TRES.findall(text)
    }
