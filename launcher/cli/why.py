"""`holdfast why`."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.blocks import WaitLine, print_json
from launcher.cli.options import JobName, Json

_SHOWN = 10


def why(
    job: JobName,
    limit: Annotated[
        int | None,
        typer.Option(help=f"Show the newest N faults; 0: all. Default: {_SHOWN}, with --json all.", metavar="N", min=0),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show why a job failed: each fault with its class, its proof, what Holdfast did, what it cost, and what to do.

    The class says what kind of failure it is, the domain whose: user, node, cluster or unknown.
    """
    from launcher.history.events import read_events
    from launcher.history.why import stories
    from launcher.job.registry import find_job
    from launcher.submission.job_control import status_now

    found = find_job(job)
    with WaitLine(f"reading the events of job {found.job_id}"):
        told = stories(read_events(found.folder / "events.jsonl"))
        now = status_now(found)
        if now.state == "lost":
            told += now.why[-1:]
    most = (0 if as_json else _SHOWN) if limit is None else limit
    if as_json:
        newest = told[-most:] if most else told
        faults = [story.to_mapping() for story in newest]
        return print_json({"job": found.to_mapping(), "state": now.state, "reason": now.reason, "faults": faults})
    from holdfast.blocks import print_block
    from launcher.screen.why import why_page

    print_block(why_page(told, now, f"{found.job_id}  {found.name}  ({found.cluster}, {found.folder})", most))
    return None
