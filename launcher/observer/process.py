"""The observer's process. It reads the job's events as any other reader does, and writes nothing into them.

It ends when its stdin closes, because then its supervisor is gone, and when another supervisor has taken over, which
has an observer of its own. observer.json in the job's folder has the number of events whose notices were sent. The next
observer goes on from there.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.base.files import durable_write
from holdfast.base.plain_file import read_json
from launcher.history.events import Event
from launcher.job.jobfile import JobSpec, read_job
from launcher.job.notify import Metrics
from launcher.observer.delivery import Delivery, Heartbeat
from launcher.observer.notices import Notices
from launcher.observer.otlp import OtlpExport, is_asked
from launcher.report.live import EventFollower, LiveFacts

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

log = logging.getLogger(__name__)

STATE_FILE = "observer.json"
FINISH_S = 15.0  # for the last notices, after the supervisor's end
_LOOK_S = 0.5
_OLD_S = 86400.0  # a metrics file of an ended job


def main(job_dir: str, job_id: str, started_s: str) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # Slurm sends them to all processes of the batch step
    folder = Path(job_dir)
    Observer(folder, read_job(folder), job_id, float(started_s)).run()
    return 0


class Observer:
    """Follows a job until its supervisor is gone.

    Args:
        job_dir: the job's folder.
        spec: the job.
        job_id: its id.
        started_s: when its supervisor started, in seconds since the epoch.
    """

    def __init__(self, job_dir: Path, spec: JobSpec, job_id: str, started_s: float) -> None:
        self._dir = job_dir
        self._spec = spec
        self._started_s = started_s
        self._follower = EventFollower(job_dir / "events.jsonl")
        notify = spec.notify
        sees_steps = spec.checkpoint is not None or spec.progress is not None
        self._notices: Notices | None = None
        self._delivery: Delivery | None = None
        self._metrics: _MetricsOutput | None = None
        if notify is not None:
            has_spares = spec.spares > 0
            self._notices = Notices(notify, spec.name, job_id, has_spares=has_spares, sees_steps=sees_steps)
            self._delivery = Delivery(notify)
        self._otlp: OtlpExport | None = None
        exports = is_asked(os.environ)
        if spec.metrics is not None or exports:
            from launcher.report.metrics import registry_of

            live = LiveFacts(job_dir / "events.jsonl")  # scrapes read on when they come, notices in their own time
            registry = registry_of(spec.name, job_id, live.facts)
            self._metrics = _MetricsOutput(spec.metrics, registry, job_id) if spec.metrics is not None else None
            self._otlp = OtlpExport(registry, os.environ) if exports else None
        self._seen = 0
        self._sent = self._read_sent()
        self._term: int | None = None  # of our supervisor

    def run(self) -> None:
        """Return after the supervisor's end, when the last notices are sent."""
        notify = self._spec.notify
        heartbeat = Heartbeat(notify.heartbeat, notify.heartbeat_s) if notify and notify.heartbeat else None
        goes_on = True
        while goes_on:
            is_alone = _is_closed(sys.stdin.fileno(), _LOOK_S)
            goes_on = self.look(time.time()) and not is_alone
        if heartbeat is not None:
            heartbeat.stop()
        if self._metrics is not None:
            self._metrics.write()
        deadline_s = time.monotonic() + FINISH_S
        if self._delivery is not None:
            self._delivery.close(FINISH_S)
        if self._otlp is not None:
            self._otlp.stop(max(1.0, deadline_s - time.monotonic()))

    def look(self, now_s: float) -> bool:
        """Read on and tell what is new. Returns False if another supervisor has taken over."""
        try:
            events = self._follower.new()
        except OSError as error:  # the file system may be back at the next look
            log.warning("the events cannot be read: %s", error.strerror)
            return True
        for event in events:
            if self._is_taken_over(event):
                return False
            self._tell(event)
        if self._notices is not None and self._delivery is not None:
            for notice in self._notices.of_time(now_s):
                self._delivery.send(notice)
        if self._metrics is not None:
            self._metrics.look()
        return True

    def _tell(self, event: Event) -> None:
        self._seen += 1
        if self._notices is None or self._delivery is None:
            return
        found = self._notices.of_event(event)  # those that were sent too: later ones follow from them
        is_sent = event["time"] < self._started_s if self._sent is None else self._seen <= self._sent
        if is_sent or not found:
            return
        for notice in found:
            self._delivery.send(notice)
        self._sent = self._seen
        with contextlib.suppress(OSError):  # then the next observer says it again
            durable_write(self._dir / STATE_FILE, f'{{"events": {self._seen}}}\n'.encode())

    def _is_taken_over(self, event: Event) -> bool:
        """Whether the event is of a supervisor after ours. The first event of ours is of a start or a take-over."""
        term = event.get("term") or 0
        if self._term is None and event["event"] in ("job_start", "takeover") and event["time"] >= self._started_s:
            self._term = term
        return self._term is not None and term > self._term

    def _read_sent(self) -> int | None:
        try:
            sent = read_json(self._dir / STATE_FILE).get("events")
        except (OSError, ValueError):
            return None
        return sent if isinstance(sent, int) else None


class _MetricsOutput:
    """Writes the file for node_exporter now and then, and serves the port."""

    def __init__(self, metrics: Metrics, registry: CollectorRegistry, job_id: str) -> None:
        self._every_s = metrics.every_s
        self._registry = registry
        self._path = None if metrics.textfile is None else Path(metrics.textfile) / f"holdfast-{job_id}.prom"
        self._next_s = 0.0
        self._failed = False
        if self._path is not None:
            _remove_old(self._path.parent)
        if metrics.port is not None:
            from prometheus_client import start_http_server

            try:
                start_http_server(metrics.port, addr=metrics.address, registry=self._registry)
            except OSError as error:
                log.warning("metrics: port %d cannot be used (%s); nothing is served", metrics.port, error.strerror)

    def look(self) -> None:
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + self._every_s
            self.write()

    def write(self) -> None:
        if self._path is None:
            return
        from prometheus_client import write_to_textfile

        try:
            write_to_textfile(str(self._path), self._registry)
            self._path.chmod(0o644)  # node_exporter is another user
            self._failed = False
        except OSError as error:
            if not self._failed:  # once, not at each write
                log.warning("metrics: %s cannot be written (%s)", self._path, error.strerror)
            self._failed = True


def _remove_old(folder: Path) -> None:
    """Removes this user's files of jobs that have ended long ago; node_exporter would show them for ever."""
    for path in folder.glob("holdfast-*.prom"):
        with contextlib.suppress(OSError):
            about = path.lstat()
            if about.st_uid == os.geteuid() and time.time() - about.st_mtime > _OLD_S:
                path.unlink()


def _is_closed(descriptor: int, timeout_s: float) -> bool:
    """Whether the other end of a pipe is closed; waits for that up to `timeout_s`."""
    readable, _, _ = select.select([descriptor], [], [], timeout_s)
    return bool(readable) and os.read(descriptor, 1) == b""
