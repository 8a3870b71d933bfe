"""`holdfast ckpt bench`: starts the measurements of benchmarks/ckpt_bench."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ckpt.cli.output import FAILED, JsonOption, end, print_json, reported
from ckpt.cli.progress import Bar
from ckpt.tiers.lookup import is_url

_TREE = Path(__file__).parents[2]
_BENCHMARKS = "benchmarks/ckpt_bench"


def bench(
    where: Annotated[
        str,
        typer.Argument(
            metavar="PATH-or-URL",
            help="Directory on the storage to flush to; or s3://bucket/prefix, then only S3 is measured.",
        ),
    ] = "/var/tmp",
    size_mib: Annotated[int, typer.Option("--size-mib", metavar="N", min=16, help="Size of the state.")] = 512,
    repeat: Annotated[
        int, typer.Option("--repeat", metavar="N", min=1, help="Measurements of each figure; the median is shown.")
    ] = 7,
    as_json: JsonOption = False,
) -> None:
    """Measure saves, loads and flushes on this machine, compared with plain copies and torch's own checkpoints.

    All files that it writes are removed at the end, also after an interrupt.
    """
    sys.path.append(str(_benchmarks()))
    from ckpt_bench.figures import as_json as to_json
    from ckpt_bench.figures import as_table
    from ckpt_bench.objects import objects_at
    from ckpt_bench.run import measured_bytes, run, unwinding

    what = f"s3 {where}" if is_url(where) else "this machine"
    total = measured_bytes(size_mib, repeat, bucket=is_url(where))
    with reported(), unwinding(), Bar(f"measuring {what}", total, quiet=as_json) as bar:
        if is_url(where):
            figures = objects_at(where, size_mib << 20, repeat, bar.advance)
        else:
            figures = run(size_mib=size_mib, repeat=repeat, directory=Path(where), advance=bar.advance)
    if as_json:
        print_json(to_json(figures))
    else:
        Console().print(as_table(figures, f"Checkpoints of {size_mib} MiB, one rank, median of {repeat}"))


def _benchmarks() -> Path:
    """The folder of the package ckpt_bench: in the source tree, or under share/, where the wheel installs it.

    Raises:
        VerbFailed: neither exists.
    """
    if (_TREE / _BENCHMARKS).is_dir():
        return _TREE / "benchmarks"
    for file in metadata.files("holdfast-hpc") or []:
        if str(file).endswith(f"{_BENCHMARKS}/run.py"):
            return Path(str(file.locate())).parents[1]
    end(f"bench: the installation has no {_BENCHMARKS}; install the wheel of holdfast-hpc again", FAILED)
