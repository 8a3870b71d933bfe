"""Follows the times of the ranks' steps, and tells the core which nodes hold the others up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from launcher.core.inputs import Reported, StragglerGone, StragglerSeen
from launcher.diagnosis.slow_rank import RankTimes, SlowRanks
from launcher.job.straggler import StragglerSection

_ADVICE = "a link or a switch may be slow: `holdfast node check --only allreduce_pairs` in an allocation measures pairs"


class Stragglers:
    """The slow ranks of the running attempt. With each attempt it begins anew, because ranks change their nodes.

    Args:
        section: the job file's `straggler`.
        switches: from node to leaf switch.
    """

    def __init__(self, section: StragglerSection, switches: Mapping[str, str]) -> None:
        self._section = section
        self._switches = switches
        self._attempt: int | None = None
        self._slow_ranks = self._begun()

    def look(
        self, attempt: int | None, times: Iterable[tuple[str, RankTimes]], now_s: float
    ) -> Iterator[StragglerSeen | StragglerGone | Reported]:
        """What has changed with the ranks' new times.

        Args:
            attempt: the attempt of these times.
            times: each with its node.
            now_s: seconds of the core's clock.
        """
        if attempt is None:
            return
        if attempt != self._attempt:
            self._attempt, self._slow_ranks = attempt, self._begun()
        for node, of_rank in times:
            self._slow_ranks.add(node, of_rank, now_s)
        was_slow = self._slow_ranks.network is not None
        seen, gone = self._slow_ranks.look()
        yield from (StragglerSeen(node=found.node, attempt=attempt, straggler=found) for found in seen)
        yield from (StragglerGone(node=node, attempt=attempt) for node in gone)
        if (network := self._slow_ranks.network) is not None and not was_slow:
            fields = {"what": str(network), "detail": _ADVICE}
            yield Reported(node=None, attempt=attempt, event="problem", fields=fields)

    def _begun(self) -> SlowRanks:
        return SlowRanks(factor=self._section.factor, steps=self._section.steps, switches=self._switches)
