"""Values that Tab completes: jobs, and a job's nodes, ranks and attempts.

The shell calls `holdfast` at each Tab, so a completion reads only the registry and one job's folder. A completion that
fails completes nothing: the shell would print an error into the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

Completion = tuple[str, str]  # the value, and what the shell shows beside it
_Complete = Callable[[Any, str], list[Completion]]


def _completion(values: Callable[[Any], Iterable[Completion]]) -> _Complete:
    """Makes the function that typer calls from one that gives all values, for a context."""

    def complete(ctx: Any, incomplete: str) -> list[Completion]:
        try:
            return [each for each in values(ctx) if each[0].startswith(incomplete)]
        except Exception:
            return []

    return complete


@_completion
def job_ids(ctx: Any) -> Iterable[Completion]:
    """The ids of all known jobs, newest first, with name and age; then the names."""
    from launcher.history.view import age
    from launcher.job.registry import listed_jobs

    jobs = listed_jobs()[::-1]
    yield from ((job.job_id, f"{job.name}, {age(job.submitted_s)} ago") for job in jobs)
    names = dict.fromkeys(job.name for job in jobs)
    yield from ((name, "the newest job of this name") for name in names if name not in {job.job_id for job in jobs})


@_completion
def nodes_of_job(ctx: Any) -> Iterable[Completion]:
    """The nodes of the job's newest attempt."""
    return ((node, "") for node in _status(ctx).nodes)


@_completion
def ranks_of_job(ctx: Any) -> Iterable[Completion]:
    """`all`, and the ranks that have written something."""
    from launcher.submission.logs import JobLogs, Selection

    yield "all", "every worker"
    files = JobLogs(_job(ctx).folder, Selection(all_ranks=True, newest=True)).files()
    yield from ((str(file.rank), "") for file in files)


@_completion
def attempts_of_job(ctx: Any) -> Iterable[Completion]:
    """`newest`, and the attempts that have logs."""
    from launcher.submission.logs import JobLogs, Selection

    yield "newest", "the newest attempt"
    yield from ((str(number), "") for number in JobLogs(_job(ctx).folder, Selection()).attempts())


@_completion
def states(ctx: Any) -> Iterable[Completion]:
    """The states of a job."""
    from launcher.history.status import STATES

    return ((state, "") for state in STATES)


@_completion
def clusters(ctx: Any) -> Iterable[Completion]:
    """Where a job can run."""
    from launcher.scheduler import SCHEDULERS

    return ((name, each.words) for name, each in SCHEDULERS.items())


def _job(ctx: Any) -> Any:
    from launcher.job.registry import find_job

    # An option that still lacks its value ends the parsing: the words before it are then in `args`.
    return find_job(ctx.params["job"] or ctx.args[0])


def _status(ctx: Any) -> Any:
    from launcher.history.stored import StatusReader

    return StatusReader(_job(ctx).folder).status()
