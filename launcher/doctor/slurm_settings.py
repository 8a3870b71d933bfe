"""Judges Slurm's configuration, as `scontrol show config` prints it, for a supervised job. Pure functions."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping

from lifecycle import Finding, Status
from slurm.conf import runs_prolog_first
from slurm.requeue import may_expedite, requeue_delay

OLDEST = (22, 5)
KILL_WAIT_S = 30  # in which the ranks of a preempted job stop and save
LONGEST_REQUEUE_DELAY_S = 30
LONGEST_SILENCE_S = 600
_NO_SHELLS = ("nologin", "false", "true", "sync", "")

Config = Mapping[str, str]


def judge_settings(config: Config) -> list[Finding]:
    """A finding for each setting that matters.

    Args:
        config: parameter -> value, as Slurm spells both.
    """
    return [finding for rule in _RULES for finding in rule(config)]


def judge_export(config: Config, export: object, shell: str) -> Iterator[Finding]:
    """Whether Slurm can make the environment that sbatch's --export asks for.

    Args:
        config: as above.
        export: the job's option; None without one.
        shell: the user's login shell.
    """
    if export in (None, "ALL", "NIL"):
        return
    is_held = _release(config) >= (25, 5) and os.path.basename(shell) in _NO_SHELLS
    advice = (
        "leave out `export`, and name variables in `env:`: Slurm runs this shell on the node, which fails, and then "
        "requeues and holds the job"
    )
    measured = f"--export={export}, login shell {shell or 'not known'}"
    yield _finding("user_environment", measured, "a login shell that ends within 120 s", advice if is_held else "")


def _release(config: Config) -> tuple[int, int]:
    """Slurm's release, for example (22, 5); (0, 0) if it is not known."""
    found = re.match(r"(\d+)\.(\d+)", config.get("SLURM_VERSION", ""))
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _finding(name: str, measured: str, expected: str = "", advice: str = "") -> Finding:
    """Ok without advice, else a warning."""
    status = Status.WARNING if advice else Status.OK
    return Finding(check=name, status=status, measured=measured, expected=expected, advice=advice)


def _number(value: str | None) -> int | None:
    found = re.match(r"\d+", value or "")
    return int(found[0]) if found else None


def _version(config: Config) -> Iterator[Finding]:
    value = config.get("SLURM_VERSION", "")
    release = _release(config)
    expected = f"{OLDEST[0]}.{OLDEST[1]:02} or newer"
    if release == (0, 0):
        yield Finding(check="slurm_version", status=Status.UNKNOWN, measured=value or "not said", expected=expected)
    else:
        advice = "upgrade Slurm: older versions were not tried" if release < OLDEST else ""
        yield _finding("slurm_version", value, expected, advice)


def _kill_wait(config: Config) -> Iterator[Finding]:
    seconds = _number(config.get("KillWait"))
    if seconds is not None:
        advice = f"KillWait={KILL_WAIT_S} in slurm.conf: a preempted job has no time to save"
        yield _finding(
            "kill_wait", f"{seconds} s", f"at least {KILL_WAIT_S} s", advice if seconds < KILL_WAIT_S else ""
        )


def _node_loss(config: Config) -> Iterator[Finding]:
    returns = config.get("ReturnToService", "")
    advice = "ReturnToService=2 in slurm.conf: a node that was lost stays DOWN until an administrator resumes it"
    yield _finding("return_to_service", returns or "not said", "1 or 2", advice if returns == "0" else "")
    seconds = _number(config.get("SlurmdTimeout"))
    if seconds is not None:
        advice = "SlurmdTimeout=300 in slurm.conf: Slurm gives lost nodes to jobs until it sets them DOWN"
        is_wrong = seconds == 0 or seconds > LONGEST_SILENCE_S
        yield _finding("slurmd_timeout", f"{seconds} s", f"1 to {LONGEST_SILENCE_S} s", advice if is_wrong else "")


def _requeue(config: Config) -> Iterator[Finding]:
    value = config.get("JobRequeue", "not said")
    yield _finding("requeue", f"JobRequeue={value}", "any: jobs are submitted with --requeue")
    seconds, setting = requeue_delay(config)
    shorter = "SchedulerParameters=requeue_delay=N (Slurm 25.11), or AuthInfo=cred_expire=N, in slurm.conf"
    if may_expedite(config):
        shorter = "`slurm: {requeue: expedite}` in the job file: Slurm then holds a job that ends with an error"
    advice = f"a requeued job waits for this time; shorter: {shorter}"
    is_long = seconds > LONGEST_REQUEUE_DELAY_S
    expected = f"{LONGEST_REQUEUE_DELAY_S} s or less"
    yield _finding("requeue_delay", f"{seconds} s ({setting})", expected, advice if is_long else "")


def _preemption(config: Config) -> Iterator[Finding]:
    mode = config.get("PreemptMode", "OFF").upper()
    advice = "PreemptMode=REQUEUE in slurm.conf: ranks that are suspended look as if they hang"
    yield _finding("preempt_mode", mode, "OFF, REQUEUE or CANCEL", advice if "SUSPEND" in mode else "")


def _processes(config: Config) -> Iterator[Finding]:
    kills = config.get("KillOnBadExit", "0")
    yield _finding("kill_on_bad_exit", kills, "any: Holdfast's steps set it themselves")
    track = config.get("ProctrackType", "")
    advice = "ProctrackType=proctrack/cgroup: else processes that leave their session outlive the job"
    yield _finding("proctrack", track or "not said", "proctrack/cgroup", "" if "cgroup" in track else advice)
    plugins = config.get("TaskPlugin", "")
    advice = "TaskPlugin=task/affinity,task/cgroup: else workers share all cores, and memory has no limit"
    is_bound = "affinity" in plugins or "cgroup" in plugins
    yield _finding("task_plugin", plugins or "not said", "task/affinity,task/cgroup", "" if is_bound else advice)


def _selection(config: Config) -> Iterator[Finding]:
    value = config.get("SelectType", "")
    advice = "SelectType=select/cons_tres: else GPUs cannot be asked for"
    yield _finding("select_type", value or "not said", "select/cons_tres", "" if "cons_tres" in value else advice)


def _launch(config: Config) -> Iterator[Finding]:
    yield _finding("launch_parameters", config.get("LaunchParameters", "(null)"), "any")
    seconds = _number(config.get("InactiveLimit")) or 0
    advice = "InactiveLimit=0 in slurm.conf: else Slurm ends a job whose srun is silent"
    yield _finding("inactive_limit", f"{seconds} s", "0", advice if seconds else "")


def _prolog(config: Config) -> Iterator[Finding]:
    has_prolog = config.get("Prolog", "(null)") not in ("(null)", "")
    flags = config.get("PrologFlags", "(null)")
    is_early = runs_prolog_first(flags)
    advice = "PrologFlags=Alloc in slurm.conf: else the prolog runs at a job's first step, too late to start elsewhere"
    advice = advice if has_prolog and not is_early else ""
    yield _finding("prolog_flags", flags, "Alloc, where there is a prolog", advice)


_RULES: tuple[Callable[[Config], Iterator[Finding]], ...] = (
    _version,
    _kill_wait,
    _node_loss,
    _requeue,
    _preemption,
    _processes,
    _selection,
    _launch,
    _prolog,
)
