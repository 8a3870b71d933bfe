"""A job on a real Slurm whose supervisors are lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from broken_job import BrokenJob
from main_job import Event

from launcher.leadership.terms import Term, newest

TAKE_OVER_S = 60.0  # longer than any take-over takes on a machine that does much else


class SupervisedJob(BrokenJob):
    """A job whose supervisors are lost: 2 nodes and, unless changed, 3 spares. The batch host is a spare."""

    def __init__(self, cluster: Any, folder: Path, **changes: Any) -> None:
        super().__init__(cluster, folder, **{"spares": 3} | changes)

    @property
    def term(self) -> Term:
        """The newest supervisor's."""
        term = newest(self.watch.job_dir)
        assert term is not None and term.node is not None
        return term

    def signal_supervisor(self, name: str, term: Term) -> None:
        self.cluster.run_on_node(term.node, ["kill", f"-{name}", str(term.pid)])

    def taken_over(self, lose: Callable[[], object]) -> Event:
        """Loses the supervisor and waits for the next one, and for a commit that it has heard of."""
        before = len(self.watch.events())
        number = self.term.number
        lose()
        takeover = self.watch.wait_for("takeover", TAKE_OVER_S, term=number + 1)

        def committed() -> bool | None:
            events = self.watch.events()[before:]
            after = events[events.index(takeover) :]
            return True if any(event["event"] == "commit" for event in after) else None

        self.watch.until(committed, TAKE_OVER_S, "commit after the take-over")
        return takeover

    @property
    def attempts(self) -> int:
        return len(self.watch.events("attempt_start"))

    @property
    def terms_written(self) -> list[int]:
        """Of the supervisors that wrote events, line by line, also of those that do not count."""
        lines = (self.watch.job_dir / "events.jsonl").read_text().splitlines()
        return [json.loads(line)["term"] for line in lines]

    @property
    def supervisor_log(self) -> str:
        return (self.watch.job_dir / "log" / "supervisor.log").read_text()
