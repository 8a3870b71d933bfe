"""The sections `notify` and `metrics` of a job file: whom a running job tells what has happened to it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from holdfast.settings.keys import key

NoticeKind = Literal["fault", "requeue", "end", "no_spare", "stalled"]
KINDS: tuple[NoticeKind, ...] = get_args(NoticeKind)

_PLACE = "a URL (http or https) or an absolute path"
_URLS = ("http://", "https://")


def is_url(place: str) -> bool:
    return place.startswith(_URLS)


@dataclass(frozen=True, kw_only=True)
class Notify:
    """Who is told what happens to the job. It never delays the job; what cannot be delivered is logged."""

    on: tuple[NoticeKind, ...] = key(
        "What is told: a fault, a requeue, the job's end, the loss of the last spare, no new step for `stalled_s`.",
        default=KINDS,
        expected=f"one of {', '.join(KINDS)}",
        example="[fault, end]",
    )
    command: tuple[str, ...] = key(
        "A program and its arguments, run on the supervisor's node. It gets the notice as JSON on stdin.",
        default=(),
        expected="a word of the command line",
        example="[/usr/local/bin/page-me, --team, ml]",
    )
    webhook: str | None = key(
        "A URL to which notices are posted, or a file that has the URL. A file keeps it out of the job's folder.",
        default=None,
        expected=_PLACE,
        example="/home/me/.slack_webhook",
    )
    form: Literal["slack", "json"] = key("The form of what is posted.", default="slack", example="json")
    stalled_s: float = key(
        "Without a new step in this time the job is stalled. Starts and recoveries count too.",
        default=1800.0, ge=60, allow_inf_nan=False, unit="s", example=3600,
    )  # fmt: skip
    heartbeat: str | None = key(
        "A dead man's switch: a URL that is requested, or a file that is written, while the job is supervised.",
        default=None,
        expected=_PLACE,
        example="/home/me/gpt.alive",
    )
    heartbeat_s: float = key(
        "Time between two heartbeats.", default=60.0, ge=1, allow_inf_nan=False, unit="s", example=300
    )

    def _places_are_absolute(self, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        for name in ("webhook", "heartbeat"):
            place = getattr(self, name)
            if place is not None and not is_url(place) and not os.path.isabs(place):
                yield name, f"got a text of {len(place)} characters, expected {_PLACE}"  # it may be a secret

    def _somebody_is_told(self, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        if not self.command and self.webhook is None and self.heartbeat is None:
            yield "webhook", "nobody is told; expected command, webhook or heartbeat"

    rules = (_places_are_absolute, _somebody_is_told)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Notify:
        """Make the section from the JSON of its dataclasses.asdict(). The data are not validated again.

        Raises:
            TypeError, KeyError: the data are not from asdict().
        """
        return cls(**{**data, "on": tuple(data["on"]), "command": tuple(data["command"])})


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """Where a running job puts its metrics for Prometheus. `holdfast metrics JOB` prints them without this section."""

    textfile: str | None = key(
        "The directory of node_exporter's textfile collector; the job writes holdfast-JOB.prom there.",
        default=None,
        pattern="^/.*$",
        expected="an absolute path",
        example="/var/lib/node_exporter/textfile",
    )
    port: int | None = key(
        "A port on the supervisor's node at which they are served. Everybody who reaches it can read them.",
        default=None,
        ge=1,
        le=65535,
        example=9400,
    )
    address: str = key("The address of the port.", default="127.0.0.1", example="0.0.0.0")
    every_s: float = key(
        "Time between two writes of the file.", default=15.0, ge=1, allow_inf_nan=False, unit="s", example=60
    )

    def _goes_somewhere(self, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        if self.textfile is None and self.port is None:
            yield "textfile", "the metrics go nowhere; expected textfile or port"

    rules = (_goes_somewhere,)
