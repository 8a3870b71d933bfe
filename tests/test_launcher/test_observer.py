"""Whom a running job tells what: the right notices, once, without a delay of the job and without secrets in logs."""

from __future__ import annotations

import gzip
import json
import logging
import re
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from history_kit import END, GROWN, HANG, LOST_NODE, REQUEUED, START, WHOLE, event
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from launcher.errors import UsageError
from launcher.job.jobfile import JobSpec
from launcher.job.notify import KINDS, Notify
from launcher.observer.delivery import Delivery, Heartbeat
from launcher.observer.notices import Notice, Notices
from launcher.observer.otlp import OtlpExport, is_asked
from launcher.observer.process import STATE_FILE, Observer
from launcher.observer.start import observed
from launcher.report.live import LiveFacts
from launcher.report.metrics import registry_of
from launcher.supervisor.folder import make_folders, prepare

NOTICE = Notice(kind="fault", job_id="7", name="gpt", text="node_lost on n2", time_s=31.0, step=20, node="n2")
DEADLINE_S = 60.0


def until(holds: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline_s, "it did not come about in time"
        time.sleep(0.02)


class Receiver:
    """A web server. `codes` are its answers, the last one for ever."""

    def __init__(self, *codes: int) -> None:
        self.got: list[tuple[str, bytes]] = []
        self.codes = list(codes or (200,))
        self.is_open = threading.Event()
        self.is_open.set()
        outer = self

        class _Answer(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.is_open.wait(DEADLINE_S)
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                code = outer.codes.pop(0) if len(outer.codes) > 1 else outer.codes[0]
                outer.got.append((self.path, body))
                self.send_response(code)
                self.end_headers()

            do_GET = do_POST

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), _Answer)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hooks/S3CRET"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.is_open.set()
    made.server.shutdown()
    made.server.server_close()


def told(events: list[dict[str, Any]], *, has_spares: bool = True, **keys: Any) -> list[Notice]:
    notices = Notices(Notify(webhook="/x", **keys), "gpt", "7", has_spares=has_spares)
    return [notice for each in events for notice in notices.of_event(each)]


def test_faults_requeues_the_last_spare_and_the_end_are_told() -> None:
    assert [notice.kind for notice in told(WHOLE)] == ["fault", "no_spare", "fault", "requeue", "requeue", "end"]
    fault, *_, end = told(WHOLE)
    assert fault.line == "gpt (7): node_lost on n2 at step 20: no heartbeat (noticed within 1.0 s)"
    assert (fault.node, fault.step, fault.attempt, end.text) == ("n2", 20, 0, "end: done at step 120")


def test_only_what_was_asked_for_is_told() -> None:
    assert [notice.kind for notice in told(WHOLE, on=("end",))] == ["end"]


def test_the_last_spare_is_told_once_and_only_to_jobs_that_had_one() -> None:
    lost_spare = [event(11, "node_out", node="n3", reason="x"), event(12, "node_out", node="n3", reason="x")]
    assert [notice.kind for notice in told([*START, *lost_spare])] == ["no_spare"]
    bare = [each | ({"spares": []} if "spares" in each else {}) for each in START]
    assert told(bare, has_spares=False) == [] and [notice.kind for notice in told(bare)] == ["no_spare"]


def test_a_preempted_booster_is_no_fault() -> None:
    assert told([*START, event(31, "fault", attempt=0, kind="preempted", node="n4")]) == []


def test_a_job_without_new_steps_is_told_once_until_it_goes_on() -> None:
    notices = Notices(Notify(webhook="/x", stalled_s=60), "gpt", "7", has_spares=True)
    assert notices.of_time(1e9) == []
    for each in START:
        notices.of_event(each)
    assert notices.of_time(79) == []
    (stalled,) = notices.of_time(81)
    assert (stalled.kind, stalled.text, stalled.step) == ("stalled", "no new step for 00:01:01", 10)
    again = event(90, "commit", attempt=0, tier="s3", step=10)
    notices.of_event(again)
    assert notices.of_time(300) == []
    notices.of_event(again | {"step": 11})
    assert [notice.kind for notice in notices.of_time(300)] == ["stalled"]
    notices.of_event(END[-1])
    assert notices.of_time(1e9) == []


def test_a_job_that_reports_no_steps_is_never_stalled() -> None:
    notices = Notices(Notify(webhook="/x"), "gpt", "7", has_spares=True, sees_steps=False)
    for each in START:
        notices.of_event(each)
    assert notices.of_time(1e9) == []


def deliver(notify: Notify, *notices: Notice) -> None:
    delivery = Delivery(notify, pause=lambda seconds: False)
    for notice in notices:
        delivery.send(notice)
    delivery.close(DEADLINE_S)


def test_a_webhook_gets_slacks_form_or_the_whole_notice(receiver: Receiver) -> None:
    deliver(Notify(webhook=receiver.url), NOTICE)
    deliver(Notify(webhook=receiver.url, form="json"), NOTICE)
    slack, plain = (json.loads(body) for _, body in receiver.got)
    assert slack == {"text": "gpt (7): node_lost on n2"}
    assert (plain["kind"], plain["node"], plain["step"], plain["text"]) == ("fault", "n2", 20, slack["text"])


def test_the_url_may_be_in_a_file(receiver: Receiver, tmp_path: Path) -> None:
    (tmp_path / "hook").write_text(receiver.url + "\n")
    deliver(Notify(webhook=str(tmp_path / "hook")), NOTICE)
    assert len(receiver.got) == 1


def test_a_server_that_fails_is_tried_again_in_order(receiver: Receiver) -> None:
    receiver.codes = [503, 429, 200]
    deliver(Notify(webhook=receiver.url), NOTICE, replace(NOTICE, text="second"))
    assert [b"second" in body for _, body in receiver.got] == [False, False, False, True]


@pytest.mark.parametrize(("codes", "tries"), [((404,), 1), ((500,), 6)])
def test_a_notice_that_cannot_be_delivered_is_logged_without_the_secret(
    codes: tuple[int, ...], tries: int, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.codes = list(codes)
    deliver(Notify(webhook=receiver.url), NOTICE)
    assert len(receiver.got) == tries
    assert f"the server answers {codes[0]}" in caplog.text and "gpt (7): node_lost" in caplog.text
    assert "S3CRET" not in caplog.text


def test_no_server_and_no_url_are_said_without_the_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "hook").write_text("S3CRET")
    for place in ("http://127.0.0.1:1/S3CRET", "http://S3CRET:bad/", str(tmp_path / "hook"), "/no/such/file"):
        deliver(Notify(webhook=place), NOTICE)
    assert caplog.text.count("did not get a notice") == 4 and "S3CRET" not in caplog.text


@pytest.mark.processes  # a thread starts the command, and cannot skip the test
def test_a_server_that_hangs_delays_neither_the_caller_nor_the_other_receiver(
    receiver: Receiver, tmp_path: Path
) -> None:
    receiver.is_open.clear()
    out = tmp_path / "out"
    command = (sys.executable, "-c", f"import sys; open({str(out)!r}, 'a').write(sys.stdin.read() + '\\n')")
    delivery = Delivery(Notify(webhook=receiver.url, command=command))
    for number in range(1000):
        delivery.send(replace(NOTICE, text=f"number {number}"))
    until(lambda: out.exists() and "number" in out.read_text())
    delivery.close(0.0)


@pytest.mark.processes  # a thread starts the command, and cannot skip the test
def test_a_command_gets_the_notice_and_its_failure_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    out = tmp_path / "out"
    script = (
        "import json, os, sys;"
        f"json.dump([json.load(sys.stdin), os.environ['HOLDFAST_NOTICE_TEXT']], open({str(out)!r}, 'w'))"
    )
    deliver(Notify(command=(sys.executable, "-c", script)), NOTICE)
    notice, line = json.loads(out.read_text())
    assert (notice["kind"], notice["line"], line) == ("fault", NOTICE.line, NOTICE.line)
    deliver(Notify(command=(sys.executable, "-c", "import sys; sys.exit('no pager')")), NOTICE)
    deliver(Notify(command=("/no/such/program",)), NOTICE)
    assert "exits with 1: no pager" in caplog.text and "could not be started" in caplog.text


def test_the_heartbeat_goes_to_a_file_or_a_url_until_it_stops(receiver: Receiver, tmp_path: Path) -> None:
    beats = [Heartbeat(receiver.url, 0.01), Heartbeat(str(tmp_path / "alive"), 0.01)]
    until(lambda: len(receiver.got) > 2 and (tmp_path / "alive").exists())
    for beat in beats:
        beat.stop()
        beat._thread.join(DEADLINE_S)  # a beat under way would fail when the server goes


def test_a_heartbeat_that_fails_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    beat = Heartbeat(str(tmp_path / "missing" / "alive"), 0.001)
    until(lambda: "the heartbeat fails" in caplog.text)
    (tmp_path / "missing").mkdir()
    until((tmp_path / "missing" / "alive").exists)
    beat.stop()
    assert caplog.text.count("the heartbeat fails") == 1


def spec_of(tmp_path: Path, **keys: Any) -> JobSpec:
    (tmp_path / "train.py").write_text("")
    mapping = {
        "name": "gpt",
        "script": "train.py",
        "nodes": 2,
        "spares": 1,
        "checkpoint": {"memory": {"every_steps": 5}},
    }
    return JobSpec.from_mapping(mapping | keys, tmp_path)


def written(folder: Path, events: list[dict[str, Any]], term: int = 1) -> None:
    with (folder / "events.jsonl").open("a") as file:
        file.writelines(json.dumps(each | {"term": term}) + "\n" for each in events)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "7"
    make_folders(made)
    return made


class Told:
    """A receiver that is a list."""

    def __init__(self, observer: Observer) -> None:
        self.kinds: list[str] = []
        observer._delivery = self  # type: ignore[assignment]

    def send(self, notice: Notice) -> None:
        self.kinds.append(notice.kind)


def observer_of(folder: Path, started_s: float) -> tuple[Observer, list[str]]:
    observer = Observer(folder, spec_of(folder.parent, notify={"webhook": "/x"}), "7", started_s)
    return observer, Told(observer).kinds


def test_an_observer_after_a_take_over_says_nothing_twice_and_leaves_nothing_out(folder: Path) -> None:
    first, told_first = observer_of(folder, 0)
    written(folder, [*START, *LOST_NODE])
    first.look(40)
    written(folder, [event(41, "takeover", node="n1"), *HANG], term=2)
    assert not first.look(100), "another supervisor has taken over, and has an observer of its own"
    second, told_second = observer_of(folder, 41)
    assert second.look(100)
    assert (told_first, told_second) == (["fault", "no_spare"], ["fault"])


def test_what_an_earlier_run_did_in_the_folder_is_no_news(folder: Path) -> None:
    written(folder, WHOLE)
    observer, told_now = observer_of(folder, 300)
    observer.look(301)
    written(folder, [event(302, "job_start", run_id="x"), event(310, "job_end", outcome="cancelled")], term=2)
    observer.look(311)
    assert told_now == ["end"]


def test_a_scrape_takes_no_notice_away(folder: Path, tmp_path: Path) -> None:
    spec = spec_of(tmp_path, notify={"webhook": "/x"}, metrics={"textfile": str(tmp_path)})
    observer = Observer(folder, spec, "7", 0)
    told_now = Told(observer).kinds
    written(folder, [*START, LOST_NODE[0]])
    assert observer._metrics is not None
    observer._metrics.write()
    observer.look(40)
    assert told_now == ["fault"] and "node_lost" in (tmp_path / "holdfast-7.prom").read_text()


def test_the_port_serves_the_metrics_and_one_that_is_taken_is_said(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    written(folder, START)
    spec = spec_of(tmp_path, metrics={"port": port})
    Observer(folder, spec, "7", 0)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE_S) as answer:
        assert 'holdfast_job_step{job_id="7"} 10.0' in answer.read().decode()
    Observer(folder, spec, "7", 0)
    assert f"port {port} cannot be used" in caplog.text


def test_a_record_that_cannot_be_read_for_a_while_ends_no_observer(folder: Path) -> None:
    observer, told_now = observer_of(folder, 0)
    (folder / "events.jsonl").mkdir()
    assert observer.look(1)
    (folder / "events.jsonl").rmdir()
    written(folder, [*START, LOST_NODE[0]])
    assert observer.look(40) and told_now == ["fault"]


def test_the_process_tells_and_measures_until_its_supervisor_ends(
    folder: Path, receiver: Receiver, tmp_path: Path
) -> None:
    (tmp_path / "prom").mkdir()
    spec = spec_of(
        tmp_path,
        notify={
            "on": ["end", "fault"],
            "webhook": receiver.url,
            "heartbeat": str(tmp_path / "alive"),
            "heartbeat_s": 1,
        },
        metrics={"textfile": str(tmp_path / "prom"), "every_s": 1},
    )
    prepare(spec, folder)
    with observed(spec, folder, "local"):
        until((tmp_path / "alive").exists)
        now_s = time.time()
        written(folder, [each | {"time": now_s + each["time"]} for each in [*START, *LOST_NODE]])
        until(lambda: receiver.got)
        written(folder, [each | {"time": now_s + each["time"]} for each in [*HANG, *GROWN, *REQUEUED, *END]])
    lines = [json.loads(body)["text"] for _, body in receiver.got]
    assert len(lines) == 3 and "node_lost on n2" in lines[0] and "hang" in lines[1] and "end: done" in lines[2]
    (metrics,) = (tmp_path / "prom").iterdir()
    assert metrics.name == "holdfast-7.prom" and metrics.stat().st_mode & 0o777 == 0o644
    assert re.search(r'holdfast_job_state\{job_id="7",state="done"\} 1.0', metrics.read_text())
    assert "# EOF" not in metrics.read_text(), "node_exporter reads Prometheus' text format"
    assert "S3CRET" not in "".join(path.read_text() for path in (folder / "log").iterdir())
    assert "S3CRET" not in (folder / "events.jsonl").read_text() and (folder / STATE_FILE).exists()


def test_metrics_go_to_a_collector_that_opentelemetrys_variables_name(
    folder: Path, receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "1000")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "site=s1")
    prepare(spec_of(tmp_path), folder)
    written(folder, START)
    with observed(spec_of(tmp_path), folder, "local"):
        until(lambda: receiver.got)
        written(folder, [*LOST_NODE, *HANG, *GROWN, *REQUEUED, *END])
    assert {path for path, _ in receiver.got} == {"/hooks/S3CRET/v1/metrics"}
    (sent,) = ExportMetricsServiceRequest.FromString(gzipped_or_plain(receiver.got[-1][1])).resource_metrics
    resource = {each.key: each.value.string_value for each in sent.resource.attributes}
    assert (resource["service.name"], resource["site"]) == ("holdfast", "s1")
    metrics = {metric.name: metric for metric in sent.scope_metrics[0].metrics}
    (step,) = metrics["holdfast_job_step"].gauge.data_points
    assert (step.as_double, step.attributes[0].value.string_value) == (120, "7")
    faults = metrics["holdfast_job_faults"].sum
    assert faults.is_monotonic and sum(point.as_double for point in faults.data_points) == 2
    assert "holdfast_job_info" in metrics


def gzipped_or_plain(body: bytes) -> bytes:
    return gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body


@pytest.mark.parametrize(
    ("variables", "asked"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c/v1/metrics"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_METRICS_EXPORTER": "none"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c"}, False),
    ],
)
def test_only_an_endpoint_for_metrics_asks_for_an_export(variables: dict[str, str], asked: bool) -> None:
    assert is_asked(variables) == asked


def test_a_collector_that_does_not_answer_or_is_asked_otherwise_is_said_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    written(folder, START)
    registry = registry_of("gpt", "7", LiveFacts(folder / "events.jsonl").facts)
    OtlpExport(registry, {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}).stop(0)
    assert "got grpc, expected http/protobuf" in caplog.text
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://127.0.0.1:1/S3CRET")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "1")
    export = OtlpExport(registry, {})
    export._export()
    export.stop(DEADLINE_S)
    assert caplog.text.count("the collector does not take the metrics") == 1 and "S3CRET" not in caplog.text


def test_a_job_that_asks_for_nothing_has_no_observer(folder: Path, tmp_path: Path) -> None:
    with observed(spec_of(tmp_path), folder, "local"):
        assert not (folder / "log" / "observer.log").exists()


def test_the_sections_survive_the_jobs_folder(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, notify={"on": ["end"], "command": ["page"]}, metrics={"port": 9400})
    assert JobSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    assert spec.notify and spec.notify.form == "slack" and Notify(webhook="/x").on == KINDS


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ({"notify": {"on": ["crash"], "webhook": "/x"}}, "notify.on"),
        ({"notify": {"on": ["end"]}}, "nobody is told"),
        ({"notify": {"webhook": "hooks/S3CRET"}}, "expected a URL (http or https) or an absolute path"),
        ({"metrics": {}}, "the metrics go nowhere"),
        ({"metrics": {"textfile": "prom"}}, "expected an absolute path"),
    ],
)
def test_sections_that_cannot_work_are_refused(section: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        spec_of(tmp_path, **section)
    assert problem in str(caught.value) and "S3CRET" not in str(caught.value)
