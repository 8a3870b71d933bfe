"""A schedule: what a simulated job is, and which faults it meets. Plain values, so that it can be kept and shrunk."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, fields, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Setup:
    """The job and its cluster. Everything but `seed` shrinks towards its default.

    Attributes:
        seed: of the delays.
        nodes, spares: of the job.
        least: the smallest number of nodes that may train.
        extra: nodes of the cluster beyond the job's.
        has_checkpoint: whether there are agents.
        names_own: whether the job file has `progress`.
        is_local: the embedded cluster: no take-over, no requeue.
        may_requeue: whether the scheduler accepts a requeue.
        chunks: how many commits the job needs.
        chunk_s: seconds between two commits.
        jitter: by which part of it that varies.
        shared_every: commits between two in the shared tier.
        hang_timeout_s: `restart.hang_timeout_s`.
        limit_s: the job's time limit; 0 for none.
        is_slow: whether processes start ten times slower.
        heeds_stop: whether the script stops when asked to.
        reports: how many nodes report what all know.
        max_without_progress: as in the job file.
        boosters, booster_nodes: how many there may be, and how many nodes each has.
        skips: whether not every number of boosters makes an allowed size.
        runs_again: whether the job is submitted again in its folder where it has ended before it was done.
        settle_s, snooze_s: `elastic.scaling_timeout_s` and `elastic.scale_up_snooze_s`.
    """

    seed: int = 0
    nodes: int = 2
    spares: int = 1
    least: int = 2
    extra: int = 1
    has_checkpoint: bool = True
    names_own: bool = False
    is_local: bool = False
    may_requeue: bool = True
    chunks: int = 4
    chunk_s: float = 20.0
    jitter: float = 0.6
    shared_every: int = 3
    hang_timeout_s: float | None = None
    limit_s: float = 0.0
    is_slow: bool = False
    heeds_stop: bool = True
    reports: int = 2
    max_without_progress: int = 3
    boosters: int = 0
    booster_nodes: int = 1
    skips: bool = False
    settle_s: float = 10.0
    snooze_s: float = 30.0
    runs_again: bool = False

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many nodes may train, the largest number first."""
        counts = (self.boosters, 1) if self.skips else range(self.boosters, 0, -1)
        larger = (self.nodes + count * self.booster_nodes for count in counts if count)
        return tuple(dict.fromkeys((*larger, *range(self.nodes, self.least - 1, -1))))


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        kind: a function of `injection`.
        at_s: seconds after the trigger.
        after: the trigger: the name of a command or an input, or "" for the beginning.
        nth: the trigger's number, from 1.
        node: index of the node that it concerns.
        lasts_s: how long.
        flag: a variant of the kind.
    """

    kind: str
    at_s: float = 0.0
    after: str = ""
    nth: int = 1
    node: int = 0
    lasts_s: float = 10.0
    flag: int = 0


@dataclass(frozen=True, slots=True)
class Schedule:
    setup: Setup = field(default_factory=Setup)
    faults: tuple[Fault, ...] = ()

    def __str__(self) -> str:
        """Python source that makes it; defaults are left out."""
        faults = "".join(f"\n        {_source(fault)}," for fault in self.faults)
        return (
            f"Schedule(\n    {_source(self.setup)},\n    ({faults}\n    ),\n)"
            if faults
            else (f"Schedule({_source(self.setup)})")
        )


def _source(value: Any) -> str:
    given = [
        f"{item.name}={getattr(value, item.name)!r}"
        for item in fields(value)
        if getattr(value, item.name) != item.default or item.name == "kind"
    ]
    return f"{type(value).__name__}({', '.join(given)})"


# Kind -> (weight, whether it lasts, how many flags).
KINDS: dict[str, tuple[float, bool, int]] = {
    "worker_fails": (6, False, 4),
    "workers_hang": (2, False, 2),
    "worker_ends_early": (1, False, 1),
    "slow_kill": (1.5, True, 2),
    "slow_start": (1.5, True, 2),
    "runner_killed": (3, False, 1),
    "runner_broken": (1, False, 2),
    "preflight_fails": (1, False, 1),
    "node_crashes": (5, True, 3),
    "node_freezes": (3, True, 1),
    "link_breaks": (2, False, 1),
    "links_break": (1.5, False, 2),
    "node_cut": (4, True, 3),
    "partition": (2.5, True, 2),
    "slow_network": (1, True, 1),
    "agent_dies": (3, False, 2),
    "agents_late": (1, True, 1),
    "agent_lingers": (1, True, 1),
    "slurm_silent": (3, True, 1),
    "slurm_slow": (1.5, True, 1),
    "slurm_lies": (1, True, 1),
    "slurmd_dies": (2, False, 1),
    "slurm_cuts": (1.5, False, 1),
    "srun_dies": (1, False, 2),
    "requeue_by_admin": (1.5, False, 2),
    "preempted": (2, False, 1),
    "requeue_refused": (1.5, True, 1),
    "cancel": (2.5, False, 2),
    "halt": (1.5, False, 3),
    "time_warned": (1, False, 1),
    "folder_full": (2, True, 2),
    "folder_hangs": (2, True, 1),
    "folder_unseen": (1.5, True, 1),
    "folder_removed": (0.5, False, 1),
    "supervisor_killed": (4, False, 1),
    "supervisor_freezes": (3, True, 1),
    "supervisor_node_crashes": (3, True, 3),
    "supervisor_node_freezes": (1.5, True, 1),
    "batch_script_killed": (1, False, 1),
    "timer_late": (0.5, True, 1),
    "clock_skewed": (0.5, False, 2),
}
_NAMES = tuple(KINDS)
_WEIGHTS = tuple(weight for weight, _, _ in KINDS.values())
# Those of jobs with boosters.
_ELASTIC: dict[str, tuple[float, bool, int]] = {
    "booster_preempted": (6, False, 3),
    "booster_ends": (2, False, 3),
    "boosters_wait": (1, True, 1),
    "boosters_start": (1.5, False, 1),
    "stranger_joins": (0.5, False, 1),
    "scale": (4, False, 1),
}
KINDS |= _ELASTIC
# Those that came later: drawn beside the others, so that the schedules of seeds stay.
_ADDED: dict[str, tuple[float, bool, int]] = {
    "fabric_missed": (1, False, 2),
    "workers_pause": (3, True, 3),
    "agents_refused": (2, True, 1),
    "boosters_late": (2, True, 1),
    "boosters_fail": (2, True, 1),
    "sbatch_late": (2, True, 1),
    "runners_cancelled": (1, False, 1),
    "launcher_stays": (1, True, 1),
}
KINDS |= _ADDED
_DRAIN = {"node_drained": (1.0, True, 2)}
KINDS |= _DRAIN
_ELASTIC_TRIGGERS = (
    ("AskAllocation", 1), ("AskAllocation", 2), ("AllocationAsked", 1), ("AllocationAsked", 2), ("AllocationsSeen", 1),
    ("AllocationsSeen", 3), ("EndAllocation", 1), ("StartAgents", 2), ("StartAgents", 3), ("StartAgents", 4),
    ("StartWorkers", 2), ("StartWorkers", 3), ("Settle", 2), ("Settle", 3), ("Settle", 4), ("EventsWritten", 2),
    ("EventsWritten", 4), ("Restored", 2), ("Restored", 3), ("AgentsRejoined", 1), ("WorkersEnded", 1),
    ("WorkersEnded", 3), ("WorkersKilled", 1), ("WorkersKilled", 3), ("Dismiss", 1), ("Terminated", 1),
    ("Terminated", 2), ("NodeJoined", 4), ("NodeJoined", 6), ("Committed", 2), ("KillAgents", 2), ("FolderProbed", 3),
)  # fmt: skip
_LASTS_S = (0.3, 1.0, 1.5, 2.0, 3.0, 4.0, 7.0, 9.0, 12.0, 18.0, 25.0, 40.0, 90.0, 200.0)
_LASTS_LONG_S = (700.0, 2000.0)
_TRIGGERS = (
    ("StartRunners", 1), ("StartWorkers", 1), ("StartWorkers", 2), ("StartWorkers", 3), ("StartAgents", 1),
    ("StartAgents", 2), ("KillAgents", 1), ("ReleaseRunners", 1), ("AskUnusable", 1), ("AskUnusable", 2),
    ("ProbeFolder", 1), ("ProbeFolder", 2), ("Settle", 1), ("Settle", 2), ("Requeue", 1), ("EndJob", 1),
    ("AwaitReturn", 1), ("LetGo", 1), ("AskWhyTerminated", 1), ("AskTimeLeft", 1), ("Dismiss", 1),
    ("OwnCheckpointsSeen", 1), ("NodeJoined", 1), ("NodeJoined", 2), ("NodeJoined", 5), ("NodeLost", 1),
    ("NodeLost", 2), ("WorkersStarted", 1), ("WorkersStarted", 3), ("WorkersEnded", 1), ("WorkersEnded", 2),
    ("WorkersKilled", 1), ("Restored", 1), ("Committed", 1), ("Committed", 4), ("AgentsEnded", 1),
    ("AgentLost", 1), ("UnusableAnswered", 1), ("IsolationChanged", 1), ("TerminationExplained", 1),
    ("FolderProbed", 1), ("AgentsRejoined", 1), ("StoodStill", 1), ("LaunchEnded", 1), ("TimerFired", 3),
)  # fmt: skip
_DELAYS_S = (0.0, 0.0, 0.0, 0.001, 0.02, 0.1, 0.3, 0.6, 1.0, 2.0, 3.0, 6.0)
# Moments in which little else happens, and what leads there.
_MOMENTS: dict[str, tuple[str, ...]] = {
    "probing": ("folder_full", "worker_fails"),
    "gathering": ("node_crashes", "slow_start"),
    "backing_off": ("worker_fails",),
    "deciding": ("worker_fails", "preempted"),
    "scheduler": ("slurm_silent",),
    "confirming": ("node_crashes",),
    "closing": ("node_crashes", "preempted", "time_warned"),
    "requeueing": ("node_crashes", "preempted", "batch_script_killed"),
    "recording": ("folder_full", "worker_fails"),
    "returning": ("supervisor_killed", "supervisor_node_crashes"),
    "starting": ("worker_fails", "slow_start"),
    "judging": ("workers_hang", "workers_pause"),
    "finding_cause": ("worker_fails",),
    "explaining": ("agents_refused", "agent_dies"),
    "settling": ("preempted",),
    "releasing": ("agent_lingers", "halt", "launcher_stays"),
    "killing": ("node_crashes", "slow_kill"),
}
_REPEATED = ("agent_dies", "worker_fails", "node_freezes", "link_breaks", "runner_killed", "supervisor_killed")
_LEAD_TO_REQUEUE = ("confirming", "closing", "requeueing")
_STRIKES = (
    "cancel", "cancel", "halt", "preempted", "requeue_by_admin", "supervisor_killed", "supervisor_freezes",
    "supervisor_node_crashes", "node_crashes", "node_freezes", "node_cut", "runner_killed", "agent_dies", "folder_full",
    "folder_hangs", "slurm_silent", "requeue_refused", "links_break", "batch_script_killed", "time_warned",
)  # fmt: skip


def draw(seed: int) -> Schedule:
    """The schedule of a seed."""
    rng = random.Random(seed)
    setup = _draw_setup(rng, seed)
    faults = tuple(_draw_fault(rng) for _ in range(rng.choice((0, 1, 1, 2, 2, 2, 3, 3, 4, 5))))
    rng = random.Random(seed + 7_000_000_019)
    if setup.has_checkpoint and rng.random() < 0.35:
        setup = _draw_boosters(rng, setup)
        more = rng.choice((0, 1, 1, 2, 2, 3, 4))
        faults = (*faults[: rng.choice((0, 0, 1, 2, 3))], *(_draw_elastic_fault(rng) for _ in range(more)))
    rng = random.Random(seed + 11_000_000_003)
    chance = rng.random()
    if chance < 0.1:
        setup, faults = replace(setup, chunks=12), (*faults, *_draw_burst(rng, faults))
    elif chance < 0.2:
        faults = (*faults, _draw_added(rng, setup))
    elif chance < 0.35:
        setup, faults = _draw_moment(rng, setup)
    elif chance < 0.45 and setup.boosters:  # long enough to grow and shrink undisturbed
        kinds = (*_ELASTIC, "boosters_late", "boosters_fail", "sbatch_late")
        faults = tuple(fault for fault in faults if fault.kind in kinds)
        setup = replace(setup, chunks=rng.choice((10, 16, 24)), limit_s=0.0)
    elif 0.45 <= chance < 0.48:
        setup, faults = replace(setup, heeds_stop=rng.random() < 0.5), _draw_cancelled_stop(rng)
    setup = replace(setup, runs_again=rng.random() < 0.2)
    rng = random.Random(seed + 13_000_000_021)
    return Schedule(setup, (*faults, *_draw_drains(rng)) if rng.random() < 0.12 else faults)


def _draw_drains(rng: random.Random) -> list[Fault]:
    """One node is drained, or several at about the same time."""
    at_s, count = round(rng.uniform(5, 120), 2), rng.choice((1, 1, 2, 3))
    lasts_s = rng.choice((30.0, 150.0, 400.0))
    flag = rng.choice((0, 0, 1))
    return [Fault("node_drained", at_s + index * 0.5, "", 1, rng.randrange(6), lasts_s, flag) for index in range(count)]


def _draw_cancelled_stop(rng: random.Random) -> tuple[Fault, Fault]:
    """A user cancels the job while it stops for another reason."""
    stop = _of_kind(rng, rng.choice(("preempted", "preempted", "requeue_by_admin", "time_warned", "halt")))
    at_s = round(stop.at_s + rng.choice((0.3, 1.0, 2.0, 4.0, 12.0)), 2)
    return stop, Fault("cancel", at_s)


def _draw_burst(rng: random.Random, faults: tuple[Fault, ...]) -> list[Fault]:
    """The same again and again."""
    chance = rng.random()
    if faults and chance < 0.3:
        first = rng.choice(faults)
    elif chance < 0.6:
        first = _draw_fault(rng)
    else:
        first = _of_kind(rng, rng.choice(_REPEATED))
    gap_s = rng.choice((0.5, 4.0, 15.0, 40.0))
    found = []
    for index in range(rng.choice((2, 3, 4, 6))):
        where = {"nth": first.nth + index} if first.after else {"at_s": round(first.at_s + index * gap_s, 2)}
        found.append(replace(first, node=rng.choice((first.node, rng.randrange(6))), **where))
    return found


def _draw_added(rng: random.Random, setup: Setup) -> Fault:
    if setup.boosters and rng.random() < 0.6:  # as they are asked for
        fault = _of_kind(rng, rng.choice(("boosters_late", "boosters_fail", "sbatch_late")))
        return replace(fault, at_s=rng.choice((0.0, 1.0, 5.0, 30.0)), lasts_s=rng.choice((12.0, 150.0, 400.0)))
    return _of_kind(rng, rng.choices(tuple(_ADDED), tuple(weight for weight, _, _ in _ADDED.values()))[0])


def _of_kind(rng: random.Random, kind: str) -> Fault:
    """A fault at any time."""
    _, lasts, flags = KINDS[kind]
    at_s = round(rng.uniform(0, rng.choice((10, 60, 200))), 2)
    lasts_s = rng.choice((2.0, 12.0, 40.0, 150.0, 400.0)) if lasts else 0.0
    return Fault(kind, at_s, "", 1, rng.randrange(6), lasts_s, rng.randrange(flags))


def _draw_moment(rng: random.Random, setup: Setup) -> tuple[Setup, tuple[Fault, ...]]:
    """What leads to a rare moment, and another fault just then."""
    moment = rng.choice(tuple(_MOMENTS))
    cause, strike = _of_kind(rng, rng.choice(_MOMENTS[moment])), _of_kind(rng, rng.choice(_STRIKES))
    strike = replace(strike, at_s=rng.choice(_DELAYS_S), after=moment, nth=rng.choice((1, 1, 1, 2)))
    second = replace(_of_kind(rng, rng.choice(_STRIKES)), at_s=rng.choice(_DELAYS_S), after=moment, nth=strike.nth)
    if moment in _LEAD_TO_REQUEUE:
        setup, cause = replace(setup, spares=0, least=setup.nodes), replace(cause, flag=min(cause.flag, 0))
    return setup, (cause, strike, second) if rng.random() < 0.4 else (cause, strike)


def _draw_boosters(rng: random.Random, setup: Setup) -> Setup:
    boosters = rng.choice((1, 1, 2, 2, 3))
    return replace(
        setup,
        boosters=boosters,
        booster_nodes=rng.choice((1, 1, 2)),
        skips=boosters == 3 and rng.random() < 0.5,
        settle_s=rng.choice((0.5, 3.0, 10.0, 30.0)),
        snooze_s=rng.choice((1.0, 15.0, 60.0)),
        chunks=rng.choice((3, 4, 6, 8)),
    )


def _draw_elastic_fault(rng: random.Random) -> Fault:
    """One of those of boosters, or any other in a moment that only jobs with boosters have."""
    if rng.random() < 0.75:
        kind = rng.choices(tuple(_ELASTIC), tuple(weight for weight, _, _ in _ELASTIC.values()))[0]
    else:
        kind = rng.choices(_NAMES, _WEIGHTS)[0]
    _, lasts, flags = KINDS[kind]
    after, nth = rng.choice(_ELASTIC_TRIGGERS) if rng.random() < 0.6 else ("", 1)
    at_s = rng.choice(_DELAYS_S) if after else round(rng.uniform(5, rng.choice((30, 120, 400))), 2)
    lasts_s = rng.choice(_LASTS_S) if lasts else 0.0
    return Fault(kind, at_s, after, nth, rng.randrange(9), lasts_s, rng.randrange(flags))


def _draw_setup(rng: random.Random, seed: int) -> Setup:
    nodes = rng.choice((1, 2, 2, 2, 3, 3, 4))
    is_local = rng.random() < 0.08
    has_checkpoint = rng.random() < 0.85
    names_own = rng.random() < 0.3
    is_slow = rng.random() < 0.1
    chunk_s = rng.choice((5.0, 20.0, 20.0, 60.0)) if has_checkpoint else rng.choice((60.0, 120.0))
    limit_s = rng.choice((0.0, 0.0, 0.0, 120.0, 300.0, 900.0))
    if is_local or not (has_checkpoint or names_own):
        limit_s = 0.0
    elif limit_s:  # long enough for a step that is kept
        limit_s = max(limit_s, 6 * chunk_s + (600.0 if is_slow else 0.0))
    return Setup(
        seed=seed,
        nodes=nodes,
        spares=rng.choice((0, 1, 1, 1, 2)),
        least=nodes if rng.random() < 0.7 else max(1, nodes - rng.choice((1, 2))),
        extra=rng.choice((0, 1, 2)),
        has_checkpoint=has_checkpoint,
        names_own=names_own,
        is_local=is_local,
        may_requeue=rng.random() < 0.9,
        chunks=rng.choice((2, 3, 4, 5)),
        chunk_s=chunk_s,
        shared_every=rng.choice((1, 2, 3)),
        hang_timeout_s=rng.choice((None, None, None, 130.0, 200.0)) if has_checkpoint else rng.choice((None, 400.0)),
        limit_s=limit_s,
        is_slow=is_slow,
        heeds_stop=rng.random() < 0.9,
        reports=rng.choice((1, 2, 9)),
        max_without_progress=rng.choice((3, 3, 3, 1, 2)),
    )


def _draw_fault(rng: random.Random) -> Fault:
    kind = rng.choices(_NAMES, _WEIGHTS)[0]
    _, lasts, flags = KINDS[kind]
    if rng.random() < 0.55:
        after, nth = rng.choice(_TRIGGERS)
        at_s = rng.choice(_DELAYS_S)
    else:
        after, nth = "", 1
        at_s = round(rng.choice((rng.uniform(0, 8), rng.uniform(0, 30), rng.uniform(5, 120), rng.uniform(5, 400))), 2)
    lasts_s = 0.0
    if lasts:
        lasts_s = rng.choice(_LASTS_S) if rng.random() < 0.97 else rng.choice(_LASTS_LONG_S)
    return Fault(kind, at_s, after, nth, rng.randrange(6), lasts_s, rng.randrange(flags))
