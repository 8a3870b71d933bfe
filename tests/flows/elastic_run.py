"""An elastic job of the example, and what its ranks' logs say of samples and losses."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from main_job import Watch

from launcher import Executor, JobSpec
from launcher.job.registry import find_job
from launcher.submission.job_control import scale_job, stop_job

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "elastic_ddp" / "train.py"
GLOBAL_BATCH, SAMPLES = 12, 250


def resized_run(folder: Path, sizes: Sequence[int], *, between: int = 5, **options: Any) -> Watch:
    """An elastic job on the local cluster from its first size to its last, stopped then.

    Args:
        folder: for the job's folder.
        sizes: of the job, in nodes, one after the other. It may have others on its way: on a busy machine two
            boosters that were asked for at once may join one after the other.
        between: steps that it trains at each size, at least.
        options: of `elastic_job`.
    """
    job = Executor(folder=folder / "%j", cluster="local").submit(elastic_job(100_000, nodes=sizes[0], **options))
    watch = Watch(job.paths.folder)
    try:
        attempt = -1
        for size in sizes:
            if attempt >= 0:
                scale_job(find_job(job.job_id), size)
            has_size = lambda nodes, size=size: len(nodes) == size  # noqa: E731
            later = lambda number, after=attempt: number > after  # noqa: E731
            attempt = watch.wait_for("attempt_start", 120, attempt=later, nodes=has_size)["attempt"]
            resumed = watch.wait_for("first_step", 120, attempt=attempt)["step"]
            watch.wait_for("commit", 120, tier="memory", step=lambda step, after=resumed: step >= after + between)
        stop_job(find_job(job.job_id))
        assert job.result()["name"] == "halted", watch.story()
    except BaseException:
        job.cancel()
        raise
    return watch


def fixed_run(folder: Path, steps: int, **options: Any) -> Watch:
    """The same job on one node, from beginning to end."""
    job = Executor(folder=folder / "%j", cluster="local").submit(elastic_job(steps, nodes=1, elastic=None, **options))
    assert job.result()["name"] == "done"
    return Watch(job.paths.folder)


def elastic_job(steps: int, *, workers: int = 1, double: bool = True, **changes: Any) -> JobSpec:
    """2 to 4 nodes, saved to memory every 5 steps; its epochs end in mid-step."""
    numbers = {"steps": steps, "global-batch": GLOBAL_BATCH, "samples": SAMPLES, "context": 32, "width": 32}
    numbers |= {"workers": workers, "max-micro-batch": 2}
    args = [text for name, number in numbers.items() for text in (f"--{name}", str(number))]
    args += ["--print-samples"] + ["--double"] * double
    mapping = {
        "name": "elastic", "script": str(SCRIPT), "args": args, "nodes": 2,
        "elastic": {"min_nodes": 2, "max_nodes": 4, "scaling_timeout_s": 1},
        "checkpoint": {
            "namespace": "elastic", "memory": {"every_steps": 5, "keep": 2}, "redundancy": {"scheme": "partner"}
        },
    }  # fmt: skip
    return JobSpec.from_mapping(mapping | changes, SCRIPT.parent, "elastic run")


def surviving_history(job_dir: Path) -> tuple[dict[int, list[int]], dict[int, float], dict[int, int]]:
    """By step: its samples, sorted; its loss; and the number of ranks. A step that was trained again counts as last."""
    samples: dict[int, list[int]] = {}
    losses: dict[int, float] = {}
    ranks: dict[int, int] = {}
    attempts = sorted((job_dir / "log").glob("attempt-*"), key=lambda path: int(path.name.partition("-")[2]))
    for attempt in attempts:
        seen: dict[int, list[list[int]]] = {}
        for log in attempt.glob("rank-*.log"):
            for line in log.read_text().splitlines():
                if found := re.fullmatch(r"step (\d+) samples (\[.*\])", line):
                    seen.setdefault(int(found[1]), []).append(ast.literal_eval(found[2]))
                elif found := re.fullmatch(r"step (\d+) loss (\S+)", line):
                    losses[int(found[1])] = float(found[2])
        for step, parts in seen.items():
            samples[step], ranks[step] = sorted(itertools.chain(*parts)), len(parts)
    return samples, losses, ranks
