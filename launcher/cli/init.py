"""`holdfast init`: an example job, its script and the batch scripts, to copy and edit."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from holdfast.blocks import print_json
from launcher.cli.options import Json, refuse_url
from launcher.cli.schema import text_of
from launcher.errors import UsageError

_TREE = Path(__file__).parents[2]
_SHARE = "share/holdfast"
_EXAMPLE = "examples/gpt_stdlib"
_SCHEMA = "job.schema.json"  # editors complete and check the job file by it
_SCHEMA_OF_EXAMPLE = "$schema=../../docs/reference/job.schema.json"


def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Made if missing.", show_default=".")] = Path(),
    as_json: Json = False,
) -> None:
    """Write an example job (job.yaml, train.py, job.schema.json) and the batch scripts (sbatch_templates/) into DIR.

    A file that exists with other content is never overwritten.
    """
    refuse_url("init", directory)
    share = shipped()
    texts = {name: (share / _EXAMPLE / name).read_text() for name in ("job.yaml", "train.py")}
    texts["job.yaml"] = texts["job.yaml"].replace(_SCHEMA_OF_EXAMPLE, f"$schema={_SCHEMA}", 1)
    texts[_SCHEMA] = text_of("job") + "\n"
    for template in sorted((share / "sbatch_templates").glob("*.sbatch")):
        texts[f"sbatch_templates/{template.name}"] = template.read_text()
    try:
        for name, text in texts.items():
            if (directory / name).exists() and (directory / name).read_text(errors="replace") != text:
                raise UsageError(f"init: {directory / name} is there already; choose another directory")
        (directory / "sbatch_templates").mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (directory / name).write_text(text)
            if not as_json:
                typer.echo(directory / name)
    except OSError as error:
        raise UsageError(f"init: {error.filename}: {error.strerror}; choose another directory") from error
    if as_json:
        return print_json({"directory": str(directory.absolute()), "files": list(texts)})
    return typer.echo(f"try it in {directory.absolute()}: holdfast run job.yaml")


def shipped() -> Path:
    """The folder of examples/ and sbatch_templates/: the source tree, or the files that the wheel installed.

    Raises:
        UsageError: neither exists.
    """
    if (_TREE / "pyproject.toml").is_file():
        return _TREE
    for file in metadata.files("holdfast-hpc") or []:
        found, share, _ = str(file.locate()).partition(f"/{_SHARE}/")
        if share:
            return Path(found, _SHARE)
    raise UsageError(f"init: the installation has no {_SHARE}; install the wheel of holdfast-hpc again")
