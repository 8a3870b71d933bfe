"""Metrics of nodes: their checks, and healing. They are files for the textfile collector of Prometheus's node_exporter.

Names follow Prometheus's conventions, and labels those of Slurm's own metrics (`slurm_*`): a node is in `node`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.base.files import publish
from lifecycle.errors import LifecycleError
from lifecycle.heal.history import FAILED, LEFT, LEMON, REBOOT, REPAIRED, REPLACE, RETURNED, HealHistory
from lifecycle.health.finding import Status

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from lifecycle.health.verdict import Verdict

CHECKS_FILE = "holdfast-node.prom"
HEAL_FILE = "holdfast-heal.prom"

_ACTIONS = (REBOOT, REPLACE, RETURNED, REPAIRED, FAILED, LEMON, LEFT)
_SHOWN = (Status.OK, Status.WARNING, Status.CRITICAL, Status.UNKNOWN)  # skipped: the node has no such part


def of_checks(verdict: Verdict, node: str) -> Iterator[Metric]:
    """The results of a node's checks.

    Args:
        verdict: the results.
        node: the node's name in Slurm.
    """
    rows = [(row, Status[row["status"].upper()]) for row in verdict.checks]
    counts = Counter(status for _, status in rows)
    yield _gauge(
        "holdfast_node_status", "Whether the node's checks have this result.", ("node", "status"),
        {(node, status.word): float(status is verdict.status) for status in _SHOWN},
    )  # fmt: skip
    yield _gauge(
        "holdfast_node_checks", "Checks by result.", ("node", "status"),
        {(node, status.word): float(counts[status]) for status in _SHOWN},
    )  # fmt: skip
    yield _gauge(
        "holdfast_node_check_status", "0 ok, 1 warning, 2 critical, 3 unknown.", ("node", "check"),
        {(node, row["name"]): float(status) for row, status in rows if status in _SHOWN},
    )  # fmt: skip
    yield _gauge(
        "holdfast_node_check_seconds", "How long the check ran.", ("node", "check"),
        {(node, row["name"]): float(row.get("seconds") or 0) for row, status in rows if status in _SHOWN},
    )  # fmt: skip
    yield _gauge(
        "holdfast_node_checked_time_seconds", "End of the last whole run, in seconds since the epoch.", ("node",),
        {(node,): verdict.time_s},
    )  # fmt: skip


def of_healing(history: HealHistory, nodes: Mapping[str, str], now_s: float) -> Iterator[Metric]:
    """What healing has done and does now.

    Args:
        history: its state.
        nodes: what the last look found, by node: for example "waits" or "lemon".
        now_s: when it looked, in seconds since the epoch.
    """
    from prometheus_client.core import CounterMetricFamily

    done = Counter(dict.fromkeys(_ACTIONS, 0))
    done.update(event.what for event in history.events)
    actions = CounterMetricFamily(
        "holdfast_heal_actions", "Actions of healing and their results; the newest ten thousand count.",
        labels=["what"],
    )  # fmt: skip
    for what, count in sorted(done.items()):
        actions.add_metric([what], count)
    yield actions
    yield _gauge(
        "holdfast_heal_node_since_seconds", "Nodes that are being healed: since when, in seconds since the epoch.",
        ("node", "action"), {(case.node, case.action): case.since_s for case in history.cases.values()},
    )  # fmt: skip
    yield _gauge(
        "holdfast_heal_nodes", "Nodes that the last look found, by what it did with them.", ("what",),
        {(what,): float(count) for what, count in sorted(Counter(nodes.values()).items())},
    )  # fmt: skip
    yield _gauge("holdfast_heal_time_seconds", "The last look, in seconds since the epoch.", (), {(): now_s})


def write_textfile(directory: Path, name: str, metrics: Iterable[Metric]) -> None:
    """Write a file for node_exporter's textfile collector.

    Raises:
        LifecycleError: it cannot be written, or prometheus-client is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry, generate_latest
    except ModuleNotFoundError:
        raise LifecycleError("textfile: no metrics without prometheus-client; install it beside Holdfast") from None
    made = list(metrics)

    class _Collector:
        def describe(self) -> Iterable[Metric]:
            return []

        def collect(self) -> Iterable[Metric]:
            return made

    if not directory.is_dir():
        raise LifecycleError(f"textfile: {directory}: expected the directory of node_exporter's textfile collector")
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector())
    try:
        publish(directory / name, generate_latest(registry))
    except OSError as error:
        raise LifecycleError(f"textfile: {directory / name}: cannot be written ({error.strerror})") from None


def _gauge(name: str, help_text: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], float]) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    made: Metric = GaugeMetricFamily(name, help_text, labels=labels)
    for of, value in values.items():
        made.add_metric(list(of), value)  # type: ignore[attr-defined]
    return made
