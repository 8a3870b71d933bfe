"""`holdfast ckpt`: lists checkpoints and verifies every byte of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Annotated

import typer
from rich.filesize import decimal

from ckpt.cadence import SOURCES as SOURCES
from ckpt.cli.bench import bench
from ckpt.cli.inventory import StoredShard, StoredStep, find_steps
from ckpt.cli.output import FAILED, UNREAD, JsonOption, end, print_json, show_table
from ckpt.cli.plan import parse_size as parse_size
from ckpt.cli.plan import show_plan as show_plan
from ckpt.cli.progress import Bar, Waiting, counted
from ckpt.cli.verbs import register
from ckpt.errors import CheckpointError, CorruptError, one_line
from ckpt.outlook import Conditions as Conditions
from ckpt.tiers.open import probe_bucket as probe_bucket
from ckpt.tiers.reads import find_damaged
from ckpt.tiers.tier import Tier

_PAGE = 100  # steps listed at once

app = typer.Typer(help="Look at checkpoints, verify and copy them.", no_args_is_help=True, rich_markup_mode=None)
PathArgument = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help="A shared or NVMe checkpoint directory, one namespace's folder in it, a node's memory directory, "
        "or s3://bucket/prefix (AWS_ENDPOINT_URL and boto3's other settings apply).",
    ),
]


@app.command("ls", short_help="List the steps of a directory or bucket, newest first.")
def list_all(
    path: PathArgument,
    newest: Annotated[
        int | None, typer.Option("--newest", "-n", metavar="N", min=1, help="At most N steps of each namespace.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the steps in a directory: those that the next start may restore, newest first, then those of other lines."""
    steps = find_steps(path, newest=newest)
    if as_json:
        print_json([step.to_json() for step in steps])
        return
    columns = ("step", "attempt", "world size", "size", "shards", "age", "committed", "tier", "namespace", "")
    show_table(columns, _pages(map(_listed, steps), f"listing {path}"), right=columns[:6])


@app.command("verify")
def verify(
    path: PathArgument,
    step: Annotated[int | None, typer.Option("--step", metavar="N", help="Only this step.")] = None,
    quarantine: Annotated[
        bool, typer.Option("--quarantine", help="Quarantine damaged steps of a tier, so that none is restored.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Read every block of every step and compare it with its checksum.

    Exit code 1 if something is damaged, 3 if something could not be read, which is never quarantined.
    """
    with Waiting(f"listing {path}", quiet=as_json):
        found_steps = list(find_steps(path, UNREAD))
    steps = [found for found in found_steps if step in (None, found.step) and found.tier != "quarantine"]
    if step is not None and not steps:
        end(f"{path}: holds no step {step}; list the steps with `holdfast ckpt ls`")
    nbytes = sum(found.nbytes + found.parity_bytes for found in steps)
    with Bar(f"verifying {counted(len(steps))}", nbytes, quiet=as_json) as bar:
        for found in steps:
            _verify_step(found, bar.advance)
    for found in steps:
        if quarantine and found.unread and not found.other_format:
            found.unread.append("nothing of it was quarantined; verify it again")
        elif quarantine and found.problems and found.name and found.source:
            found.problems.append(f"quarantined as {_quarantine(found.source, found.name, found.problems)}")
    rows = [{**found.to_json(), "ok": not found.problems and not found.unread} for found in steps]
    if as_json:
        print_json(rows)
    else:
        columns = ("step", "attempt", "size", "tier", "namespace", "result")
        show_table(columns, [[line for found in steps for line in _verified(found)]], right=columns[:3])
    if not all(row["ok"] for row in rows):
        raise typer.Exit(FAILED if any(row["problems"] for row in rows) else UNREAD)


def _pages(rows: Iterable[Sequence[str]], what: str) -> Iterator[list[Sequence[str]]]:
    """Pages of rows; at least one, which may be empty. `what` is shown while one comes about."""
    rows = iter(rows)
    while True:
        with Waiting(what):
            page = list(islice(rows, _PAGE))
        yield page
        if len(page) < _PAGE:
            return


def _quarantine(tier: Tier, name: str, problems: list[str]) -> str:
    try:
        return tier.quarantine(name, "; ".join(problems))
    except (CheckpointError, OSError) as error:
        end(f"{name} is not quarantined: {error}", FAILED)


def _verify_step(found: StoredStep, advance: Callable[[int], None]) -> None:
    """Adds the problems of a step's bytes to `found`."""
    if found.other_format:
        found.unread.append(f"{found.name}: not verified by this release: {found.other_format}")
        return
    try:
        for shard in found.stored():
            _verify_shard(found, shard, advance)
    except CorruptError as error:
        found.problems.append(f"{found.name}: {error}")


def _verify_shard(found: StoredStep, shard: StoredShard, advance: Callable[[int], None]) -> None:
    """Reads a shard block by block and adds its problems."""
    where = f"{shard.record.what} in {shard.where}"

    def read(start: int, into: memoryview) -> None:
        shard.read(start, into)
        advance(len(into))

    try:
        damaged = list(find_damaged(read, shard.record.nbytes, shard.record.blocks))
    except (CheckpointError, FileNotFoundError) as error:
        found.problems.append(f"{where}: {error}")
        return
    except OSError as error:
        found.unread.append(f"{where}: could not be read: {one_line(error)}")
        return
    if damaged:
        what = f"{len(damaged)} of {len(shard.record.blocks)} blocks do not match"
        found.problems.append(f"{where}: {what}, first block {damaged[0]}")


def _listed(found: StoredStep) -> Sequence[str]:
    wrong = [word for texts, word in ((found.problems, "DAMAGED"), (found.unread, "UNREAD")) if texts]
    return (
        *map(_text, (found.step, found.attempt, found.world_size)),
        decimal(found.nbytes),
        f"{found.shards}{' + parity' if found.parity_bytes else ''}",
        _age(found.age_s),
        ", ".join(wrong) or {True: "yes", False: "no", None: "-"}[found.committed],
        found.tier,
        found.namespace,
        "; ".join(filter(None, [*_stays(found), found.mark, found.other_format, *found.problems, *found.unread])),
    )


def _stays(found: StoredStep) -> list[str]:
    """Why a step stays longer than `keep` says, and its metrics."""
    metrics = ", ".join(f"{name} {value:.6g}" for name, value in found.metrics.items())
    return ["pinned" if found.pinned else "", found.lasts, metrics]


def _verified(found: StoredStep) -> list[Sequence[str]]:
    """A row for each problem."""
    good = "not committed" if found.committed is False else "ok"
    found_wrong = [f"DAMAGED {text}" for text in found.problems] + [f"UNREAD {text}" for text in found.unread]
    first, *more = found_wrong or [good]
    step = (_text(found.step), _text(found.attempt), decimal(found.nbytes), found.tier, found.namespace)
    return [(*step, first), *((*[""] * len(step), line) for line in more)]


def _text(value: int | None) -> str:
    return "?" if value is None else str(value)


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"


register(app)  # the other verbs that write
app.command("bench", short_help="Measure saves, loads and flushes on this machine.")(bench)
