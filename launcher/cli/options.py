"""Arguments and options that several verbs have, and `GROUP`, the settings of every group of verbs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from launcher.cli.completion import job_ids
from launcher.errors import UsageError

GROUP: dict[str, Any] = {
    "no_args_is_help": True,
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,  # help as other tools print it: no boxes, no types
}

JobFile = Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job file.", show_default=False)]
JOB_HELP = "The job's id or its beginning, its name or folder."
JobName = Annotated[str, typer.Argument(metavar="JOB", help=JOB_HELP, show_default=False, autocompletion=job_ids)]
Nodes = Annotated[
    int | None, typer.Option("--nodes", "-N", help="Nodes that train, instead of the job file's.", metavar="N")
]
Spares = Annotated[int | None, typer.Option(help="Spare nodes, instead of the job file's.", metavar="N")]
GpusPerNode = Annotated[
    str | None,
    typer.Option("--gpus-per-node", help="GPUs on each node, instead of the job file's.", metavar="[TYPE:]N"),
]
Folder = Annotated[
    str, typer.Option(help="The job's folder; %j is the job's id. On Slurm all nodes must see it.", metavar="DIR")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def refuse_url(what: str, directory: Path | str) -> None:
    """Refuses a bucket's URL where a directory is expected. Otherwise a folder `gs:` would be made.

    Args:
        what: how to name it in the error.
        directory: as it was given; a Path has one slash of the two.

    Raises:
        UsageError: it is a URL.
    """
    if url := re.match(r"([a-z][a-z0-9+.-]*):/+(.*)", str(directory)):
        raise UsageError(
            f"{what}: got {url[1]}://{url[2]}, expected a directory; "
            "a bucket for checkpoints is checkpoint.s3.url in the job file"
        )
