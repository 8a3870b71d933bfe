"""What the decision core has to know of a job before it starts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from launcher.core.state import ElasticLimits, JobFacts, RestartLimits
from launcher.env import failure_domains
from launcher.jobfile import JobSpec
from launcher.scheduler.cluster import Cluster


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
    """The facts of a job.

    Args:
        spec: the job.
        job_dir: its folder.
        cluster: where it runs.
        switches: node -> switch, of those that Slurm knows.
        predecessor: node of the supervisor that is taken over; None where it was ours, or there is none.
        is_predecessor_silent: whether nothing answers there.
        is_take_over: whether a supervisor is taken over.
    """
    warnings = []
    if failure_domains.wants_switches(spec.checkpoint) and len(switches) < len(cluster.nodes):
        warnings = ["failure_domain: switch, but Slurm knows no switch of every node: parity is spread over nodes"]
    restart = spec.restart
    return JobFacts(
        # Where there is a spare it is the supervisor's node: the job then outlives its loss without a fault.
        nodes=tuple(sorted(cluster.nodes, key=lambda node: node == cluster.node)),
        allocations=dict.fromkeys(cluster.nodes, cluster.allocation),
        sizes=tuple(spec.sizes),
        base_nodes=spec.nodes,
        booster_nodes=spec.booster_nodes,
        most_boosters=spec.most_boosters,
        elastic=_limits_of(spec),
        is_local=cluster.name == "local",
        limits=RestartLimits(
            max_without_progress=restart.max_without_progress,
            max_restarts=spec.max_restarts,
            hang_timeout_s=restart.hang_timeout_s,
        ),
        has_checkpoint=spec.checkpoint is not None,
        names_own_checkpoints=spec.progress is not None,
        can_requeue=cluster.can_requeue,
        predecessor=predecessor,
        is_predecessor_silent=is_predecessor_silent,
        is_take_over=is_take_over,
        distance=cluster.topology.distance,
        start={
            "run_id": cluster.run_id,
            "cluster": cluster.name,
            "nodes_requested": spec.nodes,
            "spares": max(0, len(cluster.nodes) - spec.nodes),
            "restart_count": cluster.restart_count,
        },
        warnings=tuple(warnings),
        log_dir=str(job_dir / "log" / "attempt-{attempt}"),
    )


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
