"""`holdfast node on-create`: prints on_create.sh where only the package is installed, without the source tree."""

from __future__ import annotations

from pathlib import Path

import typer


def on_create() -> None:
    """Print on_create.sh, which provisions a bare node. Give the script --source, a wheel of holdfast-hpc.

    holdfast node on-create > on_create.sh
    """
    typer.echo(Path(__file__).with_name("on_create.sh").read_text(), nl=False)
