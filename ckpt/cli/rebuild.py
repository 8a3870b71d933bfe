"""`holdfast ckpt rebuild`: rebuilds lost shards from the survivors' memory directories, without agents or MPI."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.filesize import decimal

from ckpt.cli.output import FAILED, JsonOption, end, print_json, reported
from ckpt.cli.progress import Bar
from ckpt.errors import CheckpointError
from ckpt.format.shard_record import SaveId
from ckpt.redundancy.offline_rebuild import Rebuilt, Survivors, commit, find_saves, rebuild
from ckpt.tiers.catalog import directory_name
from ckpt.tiers.lookup import is_url, make_namespace
from ckpt.tiers.quarantine import noted_reason


def rebuild_lost(
    directories: Annotated[list[str], typer.Argument(metavar="DIR", help="Memory directories of the surviving nodes.")],
    into: Annotated[
        str, typer.Option("--into", metavar="DIR", help="Directory for the rebuilt shards; may be one of DIR.")
    ],
    step: Annotated[
        int | None, typer.Option("--step", metavar="N", help="The step; by default the newest that can be completed.")
    ] = None,
    commit_to: Annotated[
        str | None,
        typer.Option(
            "--commit-to",
            metavar="PATH-or-URL",
            help="Also write the whole step to this shared checkpoint directory or s3://bucket/prefix. Any run of "
            "the namespace can load it from there.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Rebuild the lost shards of a step from copies and parity, in another directory. Nothing else is changed.

    An agent of the same run that starts on the target directory finds them there. Exit code 1 if too little is left.
    """
    with reported():
        urls = [where for where in (*directories, into) if is_url(where)]
    if urls:
        end(
            f"{urls[0]}: is in a bucket. Parity exists only in nodes' memory directories. A step in a bucket cannot be "
            "rebuilt, only verified: `holdfast ckpt verify`",
        )
    target = Path(into)
    with reported():
        saves = find_saves(map(Path, directories))
        candidates = [save for save in saves if step in (None, save.step)]
        if not candidates:
            what = "no shards or parity" if step is None else f"nothing of step {step}"
            wanted = "expected nodes' memory directories, which contain own-*.json"
            end(f"{', '.join(directories)}: {what}; {wanted}; see `holdfast ckpt ls`")
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(target, os.W_OK | os.X_OK):
            end(f"{into}: is not writable")
        reasons = []
        for save in candidates:
            found = saves[save]
            if step is None and (noted := _quarantined(directories, save)):  # no restore takes it either
                reasons.append(f"step {save.step} of attempt {save.attempt}: quarantined: {noted}; to take it: --step")
                continue
            try:
                with Bar(f"rebuilding step {save.step}", found.work_bytes, quiet=as_json) as bar:
                    made = rebuild(found, target, bar.advance)
            except CheckpointError as error:
                reasons.append(f"step {save.step} of attempt {save.attempt}: {error}")
                continue
            except OSError as error:
                end(f"{error.filename or into}: {error.strerror}", FAILED)
            committed = None
            if commit_to is not None:
                committed = _commit(found, made, commit_to, as_json)
            _show(save.step, made, found.world_size, reasons, committed, as_json)
            return
    end("no step can be completed: " + "; ".join(reasons), FAILED)


def _quarantined(directories: list[str], save: SaveId) -> str | None:
    """Why a restore has quarantined the save; None if none has."""
    noted = (noted_reason(Path(directory), directory_name(save)) for directory in directories)
    return next((reason for reason in noted if reason), None)


def _commit(found: Survivors, made: list[Rebuilt], where: str, as_json: bool) -> str:
    """Writes the step to a tier and returns the tier's location."""
    files = found.shards | {one.record.rank: (one.path, one.record) for one in made}
    tier = make_namespace(where, files[0][1].namespace)
    total = sum(record.nbytes for _, record in files.values())
    with Bar(f"writing step {files[0][1].save.step}", total, quiet=as_json) as bar:
        commit(files, tier, bar.advance)
    return tier.where


def _show(
    step: int, made: list[Rebuilt], world_size: int, passed_over: list[str], committed: str | None, as_json: bool
) -> None:
    if as_json:
        rows = [{"rank": one.record.rank, "bytes": one.record.nbytes, "path": str(one.path)} for one in made]
        facts = {"step": step, "world_size": world_size, "rebuilt": rows, "passed_over": passed_over}
        print_json({**facts, "committed_to": committed})
        return
    for reason in passed_over:
        typer.echo(f"passed over: {reason}")
    for one in made:
        typer.echo(f"rank {one.record.rank}: {decimal(one.record.nbytes)} in {one.path}")
    typer.echo(f"step {step}: {len(made)} of {world_size} shards rebuilt and verified; the other shards are unchanged")
    if committed:
        typer.echo(f"step {step}: committed in {committed}")
