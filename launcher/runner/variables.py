"""The environment of workers and checkpoint agents."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from holdfast.base.environment import Variable
from launcher.env import failure_domains
from launcher.job.jobfile import JobSpec
from launcher.runner.cache import cache_dir
from launcher.runner.config import RunnerConfig


def worker_environment(spec: JobSpec, config: RunnerConfig, attempt: int, nodes: list[str]) -> dict[str, str]:
    """The variables of a worker, in addition to torchrun's and the job's own."""
    same = attempt_environment(spec, config.run_id, config.job_dir, attempt, nodes, config.switches)
    environment = dict(spec.env) | same
    return environment | {
        Variable.NODE: config.node,
        Variable.CACHE_DIR: str(cache_dir(config.node, os.environ)),
        Variable.RAM_DIR: str(config.ram_dir),
        Variable.RESTART_COUNT: str(config.restart_count),
    }


def attempt_environment(
    spec: JobSpec, run_id: str, job_dir: Path, attempt: int, nodes: list[str], switches: Mapping[str, str]
) -> dict[str, str]:
    """The variables that are equal on all nodes. The ckpt agents get them too."""
    environment = {
        Variable.RUN_ID: run_id,
        Variable.ATTEMPT: str(attempt),
        Variable.NODES: ",".join(nodes),
        Variable.RANKS_PER_NODE: str(spec.workers_per_node),
        Variable.JOB_DIR: str(job_dir),
        Variable.JOB_NAME: spec.name,
        Variable.SCRIPT: str(spec.script),
    }
    if spec.checkpoint is not None:
        environment[Variable.CHECKPOINT] = json.dumps(asdict(spec.checkpoint))
    if spec.elastic is not None and (recipe := spec.elastic.scale.get(str(len(nodes)))):
        environment[Variable.SCALE] = json.dumps(dict(recipe))
    return environment | failure_domains.for_ckpt(spec.checkpoint, nodes, switches)
