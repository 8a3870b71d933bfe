"""Sends notices and heartbeats in threads of their own, because a web server may not answer.

The address of a webhook is a secret. No message of this module has it.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
import time
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError

from holdfast.base.environment import Variable
from holdfast.base.files import durable_write
from holdfast.base.programs import ProgramError, run
from launcher.job.notify import Notify, is_url
from launcher.observer.notices import Notice

log = logging.getLogger(__name__)

_TRIES = 6
_FIRST_PAUSE_S = 1.0  # twice as long after each try
_TIMEOUT_S = 15.0
_MOST_WAITING = 200  # notices; with more, the oldest go
_NOT_TRIED_AGAIN = range(400, 500)
_TRIED_AGAIN = (408, 425, 429)


class DeliveryError(Exception):
    """A notice did not reach its receiver. Its message has no address. `is_final`: another try would fail too."""

    def __init__(self, message: str, *, is_final: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final


class Delivery:
    """Delivers notices to each receiver, in order. Each receiver has its own thread, so that one cannot delay another.

    Args:
        notify: the receivers.
        pause: waits between two tries; returns True if it is to give up.
    """

    def __init__(self, notify: Notify, pause: Callable[[float], bool] | None = None) -> None:
        self._given_up = threading.Event()
        self._pause = pause or self._given_up.wait
        self._receivers: list[_Receiver] = []
        if notify.webhook is not None:
            self._receivers.append(_Receiver("webhook", _webhook(notify.webhook, notify.form), self._pause))
        if notify.command:
            self._receivers.append(_Receiver("command", _command(notify.command), self._pause))

    def send(self, notice: Notice) -> None:
        """Queue a notice. Returns at once."""
        for receiver in self._receivers:
            receiver.put(notice)

    def close(self, timeout_s: float) -> None:
        """Deliver what waits, up to `timeout_s`; what is left is logged and dropped."""
        deadline_s = time.monotonic() + timeout_s
        for receiver in self._receivers:
            receiver.close(max(0.0, deadline_s - time.monotonic()))
        self._given_up.set()


class _Receiver:
    """One receiver, with its queue and its thread."""

    def __init__(self, name: str, send: Callable[[Notice], None], pause: Callable[[float], bool]) -> None:
        self._name = name
        self._send = send
        self._pause = pause
        self._queue: queue.Queue[Notice | None] = queue.Queue(_MOST_WAITING)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, notice: Notice | None) -> None:
        while True:
            try:
                return self._queue.put_nowait(notice)
            except queue.Full:
                self._drop_oldest()

    def close(self, timeout_s: float) -> None:
        self.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            log.warning("notify: %s takes no more notices; %d are not delivered", self._name, self._queue.qsize())

    def _drop_oldest(self) -> None:
        try:
            notice = self._queue.get_nowait()
        except queue.Empty:
            return
        log.warning("notify: %s is too slow; not delivered: %s", self._name, notice and notice.line)

    def _run(self) -> None:
        while (notice := self._queue.get()) is not None:
            self._deliver(notice)

    def _deliver(self, notice: Notice) -> None:
        for tried in range(1, _TRIES + 1):
            try:
                return self._send(notice)
            except DeliveryError as error:
                if error.is_final or tried == _TRIES or self._pause(_FIRST_PAUSE_S * 2 ** (tried - 1)):
                    log.warning(
                        "notify: %s did not get a notice in %d tries: %s; the notice: %s",
                        self._name, tried, error, notice.line,
                    )  # fmt: skip
                    return None
        return None


class Heartbeat:
    """Beats from its start to stop(), in a thread.

    Args:
        place: a URL to request, or a file to write.
        every_s: seconds between two beats.
    """

    def __init__(self, place: str, every_s: float) -> None:
        self._place = place
        self._every_s = every_s
        self._stopped = threading.Event()
        self._failed = False
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._beat()
                self._failed = False
            except (DeliveryError, OSError) as error:
                if not self._failed:  # once, not at each beat
                    log.warning("notify: the heartbeat fails: %s", error)
                self._failed = True
            self._stopped.wait(self._every_s)

    def _beat(self) -> None:
        if is_url(self._place):
            _request(urllib.request.Request(self._place))
        else:
            durable_write(Path(self._place), f"{time.time():.0f}\n".encode(), sync=False)


def _webhook(place: str, form: str) -> Callable[[Notice], None]:
    def send(notice: Notice) -> None:
        body: dict[str, Any] = {"text": notice.line} if form == "slack" else notice.to_mapping() | {"text": notice.line}
        request = urllib.request.Request(
            _url_of(place), data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}, method="POST"
        )
        _request(request)

    return send


def _url_of(place: str) -> str:
    """The URL, from the file that has it if `place` is a path. It is read each time, because secrets change."""
    if is_url(place):
        return place
    try:
        url = Path(place).read_text().strip()
    except (OSError, ValueError) as error:
        raise DeliveryError(f"{place}: cannot be read ({getattr(error, 'strerror', 'not text')})") from None
    if not is_url(url):
        raise DeliveryError(f"{place}: expected a URL (http or https) in it", is_final=True)
    return url


def _request(request: urllib.request.Request) -> None:
    """Sends a request.

    Raises:
        DeliveryError: the server did not accept it. The cause is left out, because it may have the URL.
    """
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            answer.read(1 << 16)
    except HTTPError as error:
        is_final = error.code in _NOT_TRIED_AGAIN and error.code not in _TRIED_AGAIN
        raise DeliveryError(f"the server answers {error.code}", is_final=is_final) from None
    except (URLError, HTTPException, OSError, ValueError) as error:
        reason = error.reason if isinstance(error, URLError) else error
        what = reason.strerror if isinstance(reason, OSError) and reason.strerror else type(reason).__name__
        raise DeliveryError(f"the server does not answer ({what})") from None


def _command(argv: tuple[str, ...]) -> Callable[[Notice], None]:
    def send(notice: Notice) -> None:
        environment = {**os.environ, Variable.NOTICE: notice.kind, Variable.NOTICE_TEXT: notice.line}
        try:
            text = json.dumps(notice.to_mapping() | {"line": notice.line})
            done = run(argv, input=text, env=environment, timeout_s=4 * _TIMEOUT_S, check=False)
        except ProgramError as error:
            raise DeliveryError(f"{argv[0]}: {error.reason}", is_final=not error.was_started) from None
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["it prints nothing"])[-1]
            raise DeliveryError(f"{argv[0]} exits with {done.returncode}: {last[:200]}")

    return send
