"""The environment of workers and checkpoint agents."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from launcher.env import failure_domains
from launcher.job.jobfile import JobSpec
from launcher.runner.cache import VARIABLE, cache_dir
from launcher.runner.config import RunnerConfig


def worker_environment(spec: JobSpec, config: RunnerConfig, attempt: int, nodes: list[str]) -> dict[str, str]:
    """The variables of a worker, in addition to torchrun's and the job's own."""
    same = attempt_environment(spec, config.run_id, config.job_dir, attempt, nodes, config.switches)
    environment = dict(spec.env) | same
    return environment | {
        "HOLDFAST_NODE": config.node,
        VARIABLE: str(cache_dir(config.node, os.environ)),
        "HOLDFAST_RAM_DIR": str(config.ram_dir),
        "HOLDFAST_RESTART_COUNT": str(config.restart_count),
    }


def attempt_environment(
    spec: JobSpec, run_id: str, job_dir: Path, attempt: int, nodes: list[str], switches: Mapping[str, str]
) -> dict[str, str]:
    """The variables that are equal on all nodes. The ckpt agents get them too."""
    environment = {
        "HOLDFAST_RUN_ID": run_id,
        "HOLDFAST_ATTEMPT": str(attempt),
        "HOLDFAST_NODES": ",".join(nodes),
        "HOLDFAST_RANKS_PER_NODE": str(spec.workers_per_node),
        "HOLDFAST_JOB_DIR": str(job_dir),
        "HOLDFAST_JOB_NAME": spec.name,
        "HOLDFAST_SCRIPT": str(spec.script),
    }
    if spec.checkpoint is not None:
        environment["HOLDFAST_CHECKPOINT"] = json.dumps(asdict(spec.checkpoint))
    if spec.elastic is not None and (recipe := spec.elastic.scale.get(str(len(nodes)))):
        environment["HOLDFAST_SCALE"] = json.dumps(dict(recipe))
    return environment | failure_domains.for_ckpt(spec.checkpoint, nodes, switches)
