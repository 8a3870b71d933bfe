"""Prints the lines of slurm.conf that the hooks need, and lints a site's slurm.conf."""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm.hooks.entry import DIRECTORY, HOOKS

_HEALTH_INTERVAL_S = 300
_HOOK_TIMEOUT_S = 120
# Flags of PrologFlags that set Alloc (prolog_str2flags of read_config.c). NoHold and Serial do not.
_ALLOC_TOO = frozenset(("contain", "deferbatch", "forcerequeueonfail", "runinjob", "x11"))


@dataclass(frozen=True, kw_only=True)
class Remark:
    """A line of a slurm.conf that should be changed.

    Attributes:
        line: its number, from 1; 0 if the parameter is not set.
        parameter: the parameter's name.
        got: its value; empty if it is not set.
        expected: the line that the file should have.
        why: what happens without the change.
        needed: True if the hooks do not work without the change; False for advice.
    """

    line: int
    parameter: str
    got: str
    expected: str
    why: str
    needed: bool


def hook_lines(directory: Path = DIRECTORY, interval_s: int = _HEALTH_INTERVAL_S) -> list[str]:
    """The lines for slurm.conf.

    Args:
        directory: the directory of the hooks' scripts, the same on every node.
        interval_s: seconds between two health checks of a node.
    """
    return [
        *(f"{parameter}={directory / name}.sh" for parameter, name in HOOKS.items()),
        f"HealthCheckInterval={interval_s}",
        "HealthCheckNodeState=ANY,CYCLE",
        "PrologFlags=Alloc",
        f"PrologEpilogTimeout={_HOOK_TIMEOUT_S}",
        "SchedulerParameters=nohold_on_prolog_fail",
    ]


def lint(text: str, directory: Path = DIRECTORY) -> list[Remark]:
    """Lists what to change in a slurm.conf for the hooks and for a quick recovery.

    Args:
        text: the file's content. Included files have to be linted separately.
        directory: the directory of the hooks' scripts. A link to a script, found by a pattern of Prolog or Epilog on
            this machine, counts as the script.
    """
    found = parameters(text)
    return [remark for rule in _rules(directory) if (remark := rule(found)) is not None]


def runs_prolog_first(flags: str) -> bool:
    """Whether the flags of PrologFlags make Slurm run the prolog at a job's allocation, before its first step."""
    return bool({"alloc", *_ALLOC_TOO} & {flag.strip().lower() for flag in flags.split(",")})


@dataclass(frozen=True)
class Setting:
    """A parameter's value in the file, and its values in earlier lines, which count only for a few parameters."""

    line: int
    value: str
    before: tuple[str, ...] = ()


_Found = Mapping[str, Setting]
_Rule = Callable[[_Found], "Remark | None"]


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a slurm.conf without comments, each with its number; continued ones are one line."""
    number, whole = 0, ""
    for index, line in enumerate(text.splitlines(), 1):
        number = number if whole else index
        whole += re.split(r"(?<!\\)#", line)[0].rstrip()
        if whole.endswith("\\"):
            whole = whole[:-1]
            continue
        yield number, whole.strip()
        whole = ""


def parameters(text: str) -> dict[str, Setting]:
    """Parameter in lower case (Slurm ignores case) -> its settings. Lines of nodes and partitions are left out."""
    found: dict[str, Setting] = {}
    for number, line in logical_lines(text):
        name, equals, value = line.partition("=")
        if equals and name.strip().lower() not in ("nodename", "partitionname", "downnodes", "frontendname"):
            key, earlier = name.strip().lower(), found.get(name.strip().lower())
            before = (*earlier.before, earlier.value) if earlier else ()
            found[key] = Setting(number, value.strip().strip('"'), before)
    return found


def _rules(directory: Path) -> Iterator[_Rule]:
    for parameter, name in HOOKS.items():
        yield _is_called(parameter, f"{directory / name}.sh")
    yield _runs_at_allocation
    yield _has_word(
        "SchedulerParameters",
        "nohold_on_prolog_fail",
        "a job that met an unhealthy node would be held for an administrator, instead of starting elsewhere",
    )
    yield _number("HealthCheckInterval", 60, 3600, _HEALTH_INTERVAL_S, needed=True, why="0 (the default) means never")
    yield _checks_in_turn
    yield _number(
        "PrologEpilogTimeout",
        60,
        600,
        _HOOK_TIMEOUT_S,
        why="the hooks end by themselves within 50 s; by default Slurm waits for a hung hook for ever",
    )
    yield _number(
        "SlurmdTimeout",
        30,
        300,
        60,
        why="holdfast notices a lost node in seconds by itself; Slurm gives the node's "
        "jobs up, and takes the node out, only after this time",
    )
    yield _number(
        "ReturnToService",
        0,
        1,
        1,
        why="with 2, a node that Slurm set DOWN returns as soon as it registers, without a check",
    )
    yield _number(
        "ResumeTimeout",
        600,
        3600,
        900,
        why="a node that `scontrol reboot` reboots is set down if it takes longer; GPU nodes take several minutes",
    )


def _is_called(parameter: str, script: str) -> _Rule:
    if parameter in ("Prolog", "Epilog"):
        return _is_among(parameter, script)

    def rule(found: _Found) -> Remark | None:
        now = found.get(parameter.lower())
        if now is not None and now.value == script:
            return None
        why = "the hook is not called"
        if now is not None and now.value not in ("", "(null)"):
            why += "; there can be one only: have yours call it"
        return _remark(now, parameter, script, why, needed=parameter not in ("TaskProlog", "RebootProgram"))

    return rule


def _is_among(parameter: str, script: str) -> _Rule:
    """Judges a parameter that names several scripts.

    Every Slurm takes a pattern, Slurm since 24.05 also several lines (sources of prep/script and read_config). No
    Slurm takes a list in one line.
    """
    pattern = f"/etc/slurm/{parameter.lower()}.d/*"
    beside = (
        f"to call it beside yours, link both into one directory and set {parameter}={pattern}; Slurm calls them in "
        "reverse alphabetical order, and none after the first that fails: name the link zz-holdfast"
    )

    def rule(found: _Found) -> Remark | None:
        now = found.get(parameter.lower())
        if now is None or now.value in ("", "(null)"):
            return _remark(now, parameter, script, "the hook is not called", needed=True)
        if not any(_finds(value, script) for value in (now.value, *now.before)):
            return _remark(now, parameter, pattern, f"the hook is not called; {beside}", needed=True)
        if now.before:
            why = f"before Slurm 24.05 the last line alone counts; {beside}"
            return _remark(now, parameter, pattern, why, needed=False)
        return None

    return rule


def _finds(pattern: str, script: str) -> bool:
    """Whether Slurm calls the script for a pattern: by its own path, or by a link on this machine."""
    if Path(script).match(pattern):
        return True
    return any(Path(found).resolve() == Path(script).resolve() for found in glob.glob(pattern))


def _words(now: Setting | None) -> list[str]:
    return [each.strip() for each in now.value.split(",")] if now is not None and now.value else []


def _runs_at_allocation(found: _Found) -> Remark | None:
    now = found.get("prologflags")
    if now is not None and runs_prolog_first(now.value):
        return None
    why = (
        "the prolog would run only at a job's first step on a node, and a job that cannot start "
        "there would be noticed too late"
    )
    return _remark(now, "PrologFlags", ",".join([*_words(now), "Alloc"]), why, needed=True)


def _checks_in_turn(found: _Found) -> Remark | None:
    """Whether Slurm spreads the health checks over their interval. ANY is its default."""
    now = found.get("healthchecknodestate")
    words = _words(now)
    if "cycle" in (each.lower() for each in words):
        return None
    why = "all nodes run their health checks, and ask slurmctld, at the same moment"
    return _remark(now, "HealthCheckNodeState", ",".join([*(words or ["ANY"]), "CYCLE"]), why, needed=False)


def _has_word(parameter: str, word: str, why: str) -> _Rule:
    def rule(found: _Found) -> Remark | None:
        now = found.get(parameter.lower())
        words = _words(now)
        if word in (each.lower() for each in words):
            return None
        return _remark(now, parameter, ",".join([*words, word]), why, needed=True)

    return rule


def _number(parameter: str, least: int, most: int, advised: int, *, why: str, needed: bool = False) -> _Rule:
    def rule(found: _Found) -> Remark | None:
        now = found.get(parameter.lower())
        default = {"slurmdtimeout": 300, "returntoservice": 0, "resumetimeout": 60}.get(parameter.lower(), 0)
        text = str(default) if now is None else now.value
        if text.isdigit() and least <= int(text) <= most:
            return None
        return _remark(now, parameter, str(advised), why, needed=needed)

    return rule


def _remark(now: Setting | None, parameter: str, expected: str, why: str, *, needed: bool) -> Remark:
    return Remark(
        line=now.line if now else 0,
        parameter=parameter,
        got=now.value if now else "",
        expected=f"{parameter}={expected}",
        why=why,
        needed=needed,
    )
