"""Limits of a QOS, an account or a partition for which a job waits: from Slurm's reason, and before it has one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from slurm.time_limit import time_limit_min

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

# The columns of sacctmgr that limit a job by itself: all of it, each of its nodes, and its time.
_WALL = "MaxWall"
_TIME = "time"  # the resource of MaxWall
_OF_NODE = "MaxTRESPerNode"
OF_ONE_JOB = ("MaxTRES", _OF_NODE, "MinTRES", _WALL)

Limits = Mapping[str, Mapping[str, str]]  # what limits, such as "QOS small" -> column -> value, where there is one
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
    limits_met = [line for name, columns in limits().items() for line in _compared(name, columns, reason, asked)]
    return "; ".join(limits_met) or "a limit for several jobs together: it starts when others have ended"


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


def exceeded(asked: str, time_s: float | None, qos: Limits, associations: Limits) -> list[str]:
    """The limits that a job exceeds by itself, so that it never starts; a line for each.

    A QOS overrides the same limit of an association. One QOS may override the other, so where both have a limit, the
    job has to exceed both.

    Args:
        asked: the resources for which the job asks, as Slurm prints them.
        time_s: the job's time limit; None without one.
        qos: limits of the job's QOS and of its partition's.
        associations: limits of the job's user and account, and of the accounts above.
    """
    own = tres(asked) | ({} if time_s is None else {_TIME: time_s})
    of_qos, of_accounts = ({whose: _by_resource(each) for whose, each in held.items()} for held in (qos, associations))
    found: dict[tuple[str, str], list[str]] = {}
    for key in dict.fromkeys(key for each in (*of_qos.values(), *of_accounts.values()) for key in each):
        column, resource = key
        by_qos = {whose: limits[key] for whose, limits in of_qos.items() if key in limits}
        by_account = {whose: limits[key] for whose, limits in of_accounts.items() if key in limits}
        beyond = [whose for whose, most in (by_qos or by_account).items() if _is_beyond(own, column, resource, most)]
        if not by_qos or len(beyond) == len(by_qos):
            for whose in beyond:
                found.setdefault((whose, column), []).append(resource)
    words = {word.partition("=")[0]: word for word in asked.split(",")} | {_TIME: f"{(time_s or 0) / 60:.0f} minutes"}
    lines = []
    for (whose, column), resources in found.items():
        wanted = ",".join(words.get(resource, f"no {resource}") for resource in resources)
        nodes = f" on {words.get('node', 'node=1')}" if column == _OF_NODE else ""
        value = (qos.get(whose) or associations[whose])[column]
        lines.append(f"{whose} has {column} {value}, the job asks for {wanted}{nodes}")
    return lines


def _by_resource(columns: Mapping[str, str]) -> dict[tuple[str, str], float]:
    """The limits by column and resource."""
    found = {
        (column, name): most for column in columns if column != _WALL for name, most in tres(columns[column]).items()
    }
    minutes = time_limit_min(columns[_WALL]) if _WALL in columns else None
    return found if minutes is None else found | {(_WALL, _TIME): minutes * 60.0}


def _is_beyond(own: Mapping[str, float], column: str, resource: str, limit: float) -> bool:
    if column == "MinTRES":
        return own.get(resource, 0.0) < limit
    nodes = own.get("node", 1.0) if column == _OF_NODE else 1.0
    return own.get(resource, 0.0) / nodes > limit


def tres(text: str) -> dict[str, float]:
    """Trackable resources by name; memory in bytes. Slurm prints memory without a unit in MiB."""
    return {
        name: float(count) * _UNIT[unit or ("M" if name == "mem" else "")] for name, count, unit in _TRES.findall(text)
    }
