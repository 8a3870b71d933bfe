"""The dashboard: the reports of this user's jobs, live in a browser.

It listens on the loopback address or on a Unix socket. Every address begins with a secret, so other users of this
machine, who can connect to the loopback address, get nothing. Pages of other sites get nothing either: a name that
resolves to this machine is refused (DNS rebinding), so is each request that a browser marks as another site's, and no
answer may be read, framed or embedded elsewhere.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from launcher.errors import LauncherError
from launcher.history.status import JobStatus
from launcher.job.registry import KnownJob, listed_jobs
from launcher.report.facts import RunFacts
from launcher.report.live import LiveFacts
from launcher.report.page import ListedJob, jobs_page, report_page
from launcher.submission.job_control import corrected

_HOSTS = ("127.0.0.1", "localhost", "[::1]")  # with any port: ssh -L has one of its own
_ASK_AGAIN_S = 10.0  # Slurm is asked about a job no more often
_REQUEST_TIMEOUT_S = 10.0
_MOST_CONNECTIONS = 32
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Dashboard:
    """A server of this user's jobs. Use it as a context manager; serve() blocks.

    Args:
        port: port on 127.0.0.1; 0 takes a free one.
        socket_path: a Unix socket instead, which is made here with mode 0600.
        jobs: the jobs to show; called at each request.

    Attributes:
        address: what the user opens.

    Raises:
        LauncherError: the port or the socket cannot be used.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        socket_path: Path | None = None,
        jobs: Callable[[], list[KnownJob]] = listed_jobs,
    ) -> None:
        self._token = secrets.token_urlsafe(24)
        self._jobs = jobs
        self._live: dict[str, _LiveJob] = {}
        self._lock = threading.Lock()
        self._socket_path = socket_path
        try:
            self._server = _Server(("127.0.0.1", port), self) if socket_path is None else _of_socket(socket_path, self)
        except OSError as error:
            where = socket_path or f"port {port}"
            raise LauncherError(f"dashboard: {where} cannot be used ({error.strerror}); choose another") from None
        if socket_path is None:
            self.address = f"http://127.0.0.1:{self._server.server_address[1]}/{self._token}/"
        else:
            self.address = f"http://localhost/{self._token}/ at the Unix socket {socket_path}"

    def __enter__(self) -> Dashboard:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.server_close()
        if self._socket_path is not None:
            self._socket_path.unlink(missing_ok=True)

    def serve(self) -> None:
        """Answer requests until Ctrl-C or stop()."""
        with contextlib.suppress(KeyboardInterrupt):
            self._server.serve_forever(poll_interval=0.2)

    def stop(self) -> None:
        """End serve(), which must run in another thread."""
        self._server.shutdown()

    def page(self, path: str, nonce: str) -> str | None:
        """The page at a path; None if there is none, or the path lacks the secret."""
        _, token, *rest = path.split("/") if path.startswith("/") else ("", "")
        if not hmac.compare_digest(token.encode(), self._token.encode()):
            return None
        match rest:
            case [""]:
                return jobs_page([self._listed(job) for job in reversed(self._jobs())], nonce)
            case ["job", key]:
                job = next((job for job in self._jobs() if _key(job) == key), None)
                return None if job is None else report_page(job, self._of(job).facts(), nonce=nonce)
        return None

    def _listed(self, job: KnownJob) -> ListedJob:
        try:
            status = self._of(job).facts().status
        except OSError as error:
            status = JobStatus(state="unreadable", reason=error.strerror)
        return ListedJob(key=_key(job), job=job, status=status)

    def _of(self, job: KnownJob) -> _LiveJob:
        with self._lock:
            return self._live.setdefault(_key(job), _LiveJob(job))


class _LiveJob:
    """A job's facts, with the state that its process or Slurm gives. Slurm's answer is kept for a while."""

    def __init__(self, job: KnownJob) -> None:
        self._job = job
        self._live = LiveFacts(job.folder / "events.jsonl")
        self._lock = threading.Lock()
        self._asked_s = float("-inf")
        self._asked: tuple[JobStatus, JobStatus] | None = None  # before and after the correction

    def facts(self) -> RunFacts:
        facts = self._live.facts()
        with self._lock:
            now_s = time.monotonic()
            is_same = self._asked is not None and self._asked[0].state == facts.status.state
            if self._asked is None or not is_same or now_s - self._asked_s >= _ASK_AGAIN_S:
                self._asked, self._asked_s = (facts.status, corrected(self._job, facts.status)), now_s
            answer = self._asked[1]
        return replace(facts, status=replace(facts.status, state=answer.state, reason=answer.reason, stop=answer.stop))


class _Server(ThreadingHTTPServer):
    """Gives the dashboard to its handlers, and bounds the number of connections."""

    daemon_threads = True
    request_queue_size = _MOST_CONNECTIONS

    def __init__(self, address: Any, dashboard: Dashboard, handler: type[BaseHTTPRequestHandler] | None = None) -> None:
        self.dashboard = dashboard
        self._free = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        super().__init__(address, handler or _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle of an answer is no error."""


class _SocketServer(_Server):
    """The same on a Unix socket."""

    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        former = os.umask(0o177)  # there is no moment at which others could connect
        try:
            self.socket.bind(self.server_address)
        finally:
            os.umask(former)
        self.server_name, self.server_port = "localhost", 0


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD. http.server refuses other methods."""

    server: _Server
    server_version = "holdfast"
    sys_version = ""
    timeout = _REQUEST_TIMEOUT_S

    def do_GET(self) -> None:
        nonce = secrets.token_urlsafe(12)
        try:
            page = self.server.dashboard.page(self.path, nonce) if self._is_ours() else None
        except OSError as error:
            return self._answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{error.filename}: {error.strerror}\n", "text/plain")
        if page is None:
            return self._answer(HTTPStatus.NOT_FOUND, "not found\n", "text/plain")
        policy = (
            f"default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; connect-src 'self'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        return self._answer(HTTPStatus.OK, page, "text/html", policy)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: addresses have the secret."""

    def _is_ours(self) -> bool:
        """Whether the request names this machine, and no page of another site has made it."""
        hosts = self.headers.get_all("Host") or []
        name = hosts[0].strip().lower() if len(hosts) == 1 else ""
        bare = name.rpartition(":")[0] if name.rpartition(":")[2].isdigit() else name
        return bare in _HOSTS and self.headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin")

    def _answer(self, code: HTTPStatus, text: str, kind: str, policy: str = "default-src 'none'") -> None:
        body = text.encode(errors="backslashreplace")
        self.send_response(code)
        for name, value in {**_HEADERS, "Content-Security-Policy": policy}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _of_socket(path: Path, dashboard: Dashboard) -> _Server:
    """A server on a Unix socket. A socket that nothing listens on any more is replaced."""
    if path.is_socket():
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(path)) != 0:
                path.unlink()
    return _SocketServer(str(path), dashboard)


def _key(job: KnownJob) -> str:
    """A job's part of its page's address. Ids are unique in one cluster only."""
    return hashlib.sha256(str(job.folder).encode()).hexdigest()[:16]
