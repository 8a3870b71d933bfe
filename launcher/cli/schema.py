"""`holdfast schema`: JSON Schema of the job file and of the settings."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

TITLES = {
    "job": "Holdfast's job file",
    "site": "/etc/holdfast/node.yaml: what a node should be",
    "health": "/etc/holdfast/health.yaml: settings of the health checks",
    "heal": "/etc/holdfast/heal.yaml: settings of healing",
    "hooks": "/etc/holdfast/hooks.yaml: settings of Slurm's hooks",
}


class File(StrEnum):
    """A file that a model describes."""

    JOB = "job"
    SITE = "site"
    HEALTH = "health"
    HEAL = "heal"
    HOOKS = "hooks"


def schema(
    of: Annotated[
        File, typer.Option("--of", metavar="|".join(TITLES), help="The job file, or a file of /etc/holdfast.")
    ] = File.JOB,
) -> None:
    """Print the JSON Schema of a file.

    Editors complete and check a file that begins with a line such as:

        # yaml-language-server: $schema=job.schema.json
    """
    typer.echo(text_of(of.value))


def text_of(name: str) -> str:
    """The schema of a file, as JSON text."""
    import json

    from holdfast.settings.schema import json_schema

    return json.dumps(json_schema(model_of(name), TITLES[name]), indent=2)


def model_of(name: str) -> Any:
    """The model of a file, by the name that `--of` takes."""
    from launcher.job.jobfile import JobSpec
    from lifecycle.site_files import models

    return JobSpec if name == "job" else models()[name]
