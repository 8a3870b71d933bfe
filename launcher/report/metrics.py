"""The facts of a job in OpenMetrics, by prometheus-client. Names follow Prometheus's conventions and Slurm's `slurm_*`.

Every metric has the label `job_id`, as Prometheus itself uses `job`. The job's name and run are labels of
`holdfast_job_info` alone, so that no name that a user chose makes a new series of every metric.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.history.status import STATES
from launcher.report.facts import RunFacts
from launcher.report.timeline import CLASSES

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

GRAFANA = Path(__file__).with_name("grafana.json")
ALERTS = Path(__file__).with_name("alerts.yaml")

_NODE_STATES = ("active", "spare", "out", "left")


def openmetrics(name: str, job_id: str, facts: RunFacts) -> str:
    """The metrics of a job as OpenMetrics text."""
    from prometheus_client.openmetrics.exposition import generate_latest

    return generate_latest(registry_of(name, job_id, lambda: facts)).decode()


def registry_of(name: str, job_id: str, read: Callable[[], RunFacts]) -> CollectorRegistry:
    """A registry of prometheus-client with the metrics of one job.

    Args:
        name: the job's name.
        job_id: its id.
        read: gives the facts at each collection.
    """
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_JobCollector(name, job_id, read))
    return registry


class _JobCollector:
    """Gives the metrics of one job; the interface of prometheus-client's collectors."""

    def __init__(self, name: str, job_id: str, read: Callable[[], RunFacts]) -> None:
        self._name = name
        self._job_id = job_id
        self._read = read

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        facts = self._read()
        yield self._info(facts)
        yield from self._of_job(facts)
        yield from self._of_nodes(facts)
        yield from self._of_tiers(facts)

    def _of_job(self, facts: RunFacts) -> Iterator[Metric]:
        status = facts.status
        state = {name: float(name == status.state) for name in (*STATES, status.state)}
        yield self._many("state", "Whether the job is in this state.", "state", state)
        if status.attempt is not None:
            yield self._gauge("attempt", "Number of the newest attempt, from 0.", status.attempt)
        yield self._gauge("step", "The newest step that is known to be finished.", status.step)
        if status.steps_per_s is not None:
            yield self._gauge("steps_per_second", "Speed over the last reports.", status.steps_per_s)
        if status.ettr is not None:
            yield self._gauge("ettr_ratio", "Share of the time that went into steps that were kept.", status.ettr)
        if facts.start_s is not None and facts.end_s is not None:
            yield self._gauge("start_time_seconds", "The first start, in seconds since the epoch.", facts.start_s)
            yield self._gauge("wall_seconds", "Time since the first start.", facts.end_s - facts.start_s)
        times = {name: facts.time_s.get(name, 0.0) for name in CLASSES}
        yield self._many("time_seconds", "The time by class. Lost steps leave productive.", "class", times)
        yield self._faults(facts)
        yield self._gauge("slow_nodes", "Nodes for which all others wait now.", len(status.slow))
        rungs = Counter(attempt.rung for attempt in facts.attempts)
        yield self._counter("attempts", "Attempts by the rung of the recovery ladder.", "rung", rungs)
        for name, help_text in (
            ("requeues", "Starts of the job after a requeue."),
            ("takeovers", "Take-overs by another supervisor."),
            ("agents_lost", "Losses of the checkpoint agents."),
        ):
            yield self._counter(name, help_text, "", {"": facts.counts[name]})

    def _faults(self, facts: RunFacts) -> Metric:
        from prometheus_client.core import CounterMetricFamily

        words = "Faults by kind, by the class of the failure, and by whose it is."
        made = CounterMetricFamily("holdfast_job_faults", words, labels=["job_id", "kind", "class", "domain"])
        for labels, count in Counter((each.kind, each.fault_class, each.domain) for each in facts.faults).items():
            made.add_metric([self._job_id, *labels], float(count))
        return made

    def _of_nodes(self, facts: RunFacts) -> Iterator[Metric]:
        nodes = Counter(node.state for node in facts.nodes)
        yield self._many("nodes", "Nodes by state.", "state", {state: nodes[state] for state in _NODE_STATES})
        yield self._gauge("spares", "Warm nodes that can replace a lost one.", len(facts.status.spares))
        boosters = Counter(
            "ended" if booster.ended_s else "waiting" if booster.ready_s is None else "ready"
            for booster in facts.boosters
        )
        counted = {state: boosters[state] for state in ("waiting", "ready", "ended")}
        yield self._many("boosters", "Boosters by state.", "state", counted)
        yield self._gauge(
            "redundancy_degraded", "1 while the checkpoint agents are lost: no step survives.", facts.agents_lost
        )

    def _of_tiers(self, facts: RunFacts) -> Iterator[Metric]:
        saved = [tier for tier in facts.tiers if tier.step is not None]
        for name, help_text, values in (
            ("tier_step", "The newest step that is complete in the tier.", {t.tier: t.step for t in saved}),
            ("tier_commit_time_seconds", "When it was complete, since the epoch.", {t.tier: t.time_s for t in saved}),
        ):
            yield self._many(name, help_text, "tier", {tier: float(value or 0) for tier, value in values.items()})
        for name, help_text, totals in (
            ("tier_commits", "Steps that were complete in the tier.", {t.tier: t.commits for t in facts.tiers}),
            ("tier_bytes", "Their size.", {t.tier: t.bytes for t in facts.tiers}),
            ("tier_save_seconds", "Time from the save to the commit.", {t.tier: t.seconds for t in facts.tiers}),
            ("tier_failed_saves", "Saves that did not reach the tier.", {t.tier: t.failed for t in facts.tiers}),
        ):
            yield self._counter(name, help_text, "tier", totals)

    def _info(self, facts: RunFacts) -> Metric:
        from prometheus_client.core import InfoMetricFamily

        labels = {"job_id": self._job_id, "name": self._name}
        labels |= {"run_id": facts.status.run_id or "", "cluster": facts.status.cluster or ""}
        made = InfoMetricFamily("holdfast_job", "The job's name, run and cluster.")
        made.add_metric([], labels)
        return made

    def _gauge(self, name: str, help_text: str, value: float) -> Metric:
        return self._many(name, help_text, "", {"": value})

    def _many(self, name: str, help_text: str, label: str, values: Mapping[str, float]) -> Metric:
        from prometheus_client.core import GaugeMetricFamily

        return self._filled(GaugeMetricFamily, name, help_text, label, values)

    def _counter(self, name: str, help_text: str, label: str, values: Mapping[str, float]) -> Metric:
        from prometheus_client.core import CounterMetricFamily

        return self._filled(CounterMetricFamily, name, help_text, label, values)

    def _filled(self, family: Any, name: str, help_text: str, label: str, values: Mapping[str, float]) -> Metric:
        made: Metric = family(f"holdfast_job_{name}", help_text, labels=["job_id", *filter(None, [label])])
        for value_of, value in values.items():
            made.add_metric([self._job_id, *([value_of] if label else [])], float(value))  # type: ignore[attr-defined]
        return made
