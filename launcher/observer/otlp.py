"""Exports a job's metrics by OTLP where OpenTelemetry's own variables name a collector.

The variables are those of OpenTelemetry's specification, and its package reads most of them itself: the headers, the
timeout, the resource. They are read from the supervisor's environment.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

log = logging.getLogger(__name__)

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL = "http/protobuf"
_EVERY_MS = "OTEL_METRIC_EXPORT_INTERVAL"
_DEFAULT_EVERY_MS = 60_000


def is_asked(environment: Mapping[str, str]) -> bool:
    """Whether the variables ask for an export of metrics."""
    is_off = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    is_off = is_off or environment.get("OTEL_METRICS_EXPORTER", "otlp") == "none"
    return not is_off and any(environment.get(name) for name in _ENDPOINTS)


class OtlpExport:
    """Exports from its start to stop(), in a thread, because a collector may not answer.

    Args:
        registry: the metrics; read at each export.
        environment: with OpenTelemetry's variables.
    """

    def __init__(self, registry: CollectorRegistry, environment: Mapping[str, str]) -> None:
        self._registry = registry
        self._started_ns = time.time_ns()
        self._stopped = threading.Event()
        self._failed = False
        self._thread: threading.Thread | None = None
        self._every_s = _every_s(environment)
        protocol = next((environment[name] for name in _PROTOCOLS if environment.get(name)), _PROTOCOL)
        if protocol != _PROTOCOL:
            log.warning("otlp: protocol: got %s, expected %s; no metrics are exported", protocol, _PROTOCOL)
            return
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.sdk.resources import Resource
        except ModuleNotFoundError:
            log.warning("otlp: no metrics are exported; `pip install 'holdfast-hpc[otlp]'` has the packages")
            return
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # it says each failure; this says the first
        named = environment.get("OTEL_SERVICE_NAME")
        self._resource = Resource.create({} if named else {"service.name": "holdfast"})
        self._exporter = OTLPMetricExporter()
        self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Export once more, and end. Gives up after `timeout_s`."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                log.warning("otlp: the collector does not answer; the last metrics are not exported")

    def _run(self) -> None:
        while not self._stopped.wait(self._every_s):
            self._export()
        self._export()
        self._exporter.shutdown()

    def _export(self) -> None:
        from opentelemetry.sdk.metrics.export import MetricExportResult

        try:
            done = self._exporter.export(_data(self._registry.collect(), self._resource, self._started_ns))
        except OSError as error:  # the events cannot be read; they may be at the next export
            log.warning("otlp: nothing is exported: %s", error.strerror)
            return
        has_failed = done is not MetricExportResult.SUCCESS
        if has_failed and not self._failed:  # once, not at each export
            log.warning("otlp: the collector does not take the metrics; it is tried again every %g s", self._every_s)
        self._failed = has_failed


def _every_s(environment: Mapping[str, str]) -> float:
    try:
        return max(1.0, float(environment.get(_EVERY_MS) or _DEFAULT_EVERY_MS) / 1000)
    except ValueError:
        log.warning("otlp: %s: expected milliseconds; exported every %g s", _EVERY_MS, _DEFAULT_EVERY_MS / 1000)
        return _DEFAULT_EVERY_MS / 1000


def _data(families: Iterable[Metric], resource: Any, started_ns: int) -> Any:
    """The metrics in OpenTelemetry's form, under the names that they have in Prometheus."""
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    now_ns = time.time_ns()
    metrics = [_metric(family, started_ns, now_ns) for family in families if family.samples]
    scope = ScopeMetrics(scope=InstrumentationScope("holdfast"), metrics=metrics, schema_url="")
    return MetricsData([ResourceMetrics(resource=resource, scope_metrics=[scope], schema_url="")])


def _metric(family: Metric, started_ns: int, now_ns: int) -> Any:
    from opentelemetry.sdk.metrics.export import AggregationTemporality, Gauge, Metric, NumberDataPoint, Sum

    points = [
        NumberDataPoint(
            attributes=dict(sample.labels),
            start_time_unix_nano=started_ns,
            time_unix_nano=now_ns,
            value=sample.value,
        )
        for sample in family.samples
    ]
    data: Any = Gauge(data_points=points)
    if family.type == "counter":
        data = Sum(data_points=points, aggregation_temporality=AggregationTemporality.CUMULATIVE, is_monotonic=True)
    name = family.samples[0].name.removesuffix("_total")
    return Metric(name=name, description=family.documentation, unit="1", data=data)
