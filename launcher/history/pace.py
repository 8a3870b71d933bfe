"""The speed of a job over its whole time, in a fixed number of parts."""

from __future__ import annotations

from dataclasses import dataclass, field

_PARTS = 120  # at most; at the double, two neighbours become one


@dataclass(kw_only=True)
class Pace:
    """Counts finished steps in equal parts of the time since the first of them began. Its size does not grow.

    Attributes:
        part_s: length of a part.
        start_s: when training began, in seconds since the epoch; None before.
        steps: the finished steps in each part. Steps that are repeated after a fault count again.
        last: time and step of the last report in the present attempt; None after training has stopped.
    """

    part_s: float = 1.0
    start_s: float | None = None
    steps: list[float] = field(default_factory=list)
    last: tuple[float, int] | None = None

    def began(self, time_s: float, step: int) -> None:
        """An attempt trains from `step` on."""
        self.start_s = time_s if self.start_s is None else self.start_s
        self.last = (time_s, step)

    def reached(self, time_s: float, step: int) -> None:
        """A step is finished. The steps since the last report are spread evenly over the time since then."""
        if self.last is None or step <= self.last[1]:
            return
        since_s, before = self.last
        self.last = (max(since_s, time_s), step)
        self._add(since_s, self.last[0], step - before)

    def stopped(self) -> None:
        """Training has stopped; the next report comes from another attempt."""
        self.last = None

    def rates(self, now_s: float) -> tuple[float, ...]:
        """The steps per second in each part up to now, oldest first. A last part that has only begun is left out."""
        if self.start_s is None:
            return ()
        parts = int(max(0.0, (self.last[0] if self.last else now_s) - self.start_s) / self.part_s)
        counted = [*self.steps[:parts], *(0.0 for _ in range(min(parts, 2 * _PARTS) - len(self.steps)))]
        return tuple(steps / self.part_s for steps in counted)

    def _add(self, since_s: float, until_s: float, steps: int) -> None:
        start_s = self.start_s or 0.0
        while until_s - start_s >= _PARTS * self.part_s:
            self.part_s *= 2
            self.steps = [sum(self.steps[at : at + 2]) for at in range(0, len(self.steps), 2)]
        first, last = (int(max(0.0, time_s - start_s) / self.part_s) for time_s in (since_s, until_s))
        self.steps += [0.0] * (last + 1 - len(self.steps))
        for part in range(first, last + 1):
            begins_s = start_s + part * self.part_s
            overlap_s = min(until_s, begins_s + self.part_s) - max(since_s, begins_s)
            share = overlap_s / (until_s - since_s) if until_s > since_s else 1.0
            self.steps[part] += steps * max(0.0, share)
