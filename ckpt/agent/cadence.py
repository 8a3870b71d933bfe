"""With `every_steps: auto`, how often to save: `ckpt.cadence` computes it from what this job measures.

The agent of node rank 0 measures at each commit: the time of a step, for how long a save holds the step up, and the
time of commits and flushes. Failures are those of a published rate, and each restart of this run counts. For memory
all ranks must save the same steps, so they agree on a change at the gate (see `ckpt.agent.stop`). A lower tier takes
what is committed, so node rank 0 alone decides when.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from statistics import median

from ckpt.agent.context import Context, Part
from ckpt.agent.stop import Stop
from ckpt.cadence import MEMORY_SLACK, SOURCES, SaveLevel, interval_s, interval_steps, observed_rate_hz, shares
from ckpt.format.shard_record import SaveId
from ckpt.outlook import REQUEUE_S, SLOWDOWN
from ckpt.sections import AUTO, AUTO_FROM

_MEASURED = 3  # commits before the first decision
_REMEMBER = 9  # measurements, whose median counts: an evaluation between two steps does not
_CHANGE = 1.2  # a smaller change is not worth an agreement
_GPUS = SOURCES["llama3"]


class CadenceLeader(Part):
    """Measures, decides and has the ranks agree. Without `auto` it does nothing."""

    def __init__(
        self, context: Context, stop: Stop, restored: Callable[[], SaveId | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """
        Args:
            restored: the save that this attempt has restored; None if there is none.
        """
        super().__init__(context)
        self._stop, self._restored, self._clock = stop, restored, clock
        self._started_s = clock()
        self._is_auto = self._config.memory.every_steps == AUTO
        self._every_steps = AUTO_FROM  # that of memory, as all ranks have agreed
        self._last: tuple[int, float] | None = None  # step and time of the newest commit
        self._since_change = 0  # commits
        self._step_s, self._stall_s, self._commit_s = (deque[float](maxlen=_REMEMBER) for _ in range(3))
        self._flush_s: dict[str, float] = {}  # of the newest flush, by tier
        self._told: dict[str, float] = {}  # seconds between saves that were reported, by tier
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Agrees on changes of memory's cadence until cancelled.

        Agents that replace lost ones agree anew at once: the lost ones may have told some nodes alone.
        """
        if self._is_auto and self._place.generation:
            await self._stop.save_every(self._every_steps, self._every_steps)
        while True:
            await self._changed.wait()
            self._changed.clear()
            steps = self._best_steps()
            if max(steps, self._every_steps) < _CHANGE * min(steps, self._every_steps):
                continue
            if await self._stop.save_every(steps, self._every_steps):
                self._every_steps, self._since_change = steps, 0
                self._report("memory", steps * median(self._step_s), every_steps=steps)

    def committed(self, save: SaveId, commit_s: float, stall_s: float) -> None:
        """A save is committed in memory."""
        now_s = self._clock()
        if self._last is not None and save.step > self._last[0]:
            steps, passed_s = save.step - self._last[0], now_s - self._last[1]
            self._step_s.append(max(passed_s - stall_s, 0.0) / steps)
            self._stall_s.append(stall_s)
            self._commit_s.append(commit_s)
        self._last = save.step, now_s
        self._since_change += 1
        if self._is_auto and len(self._step_s) >= _MEASURED and self._since_change >= _MEASURED:
            self._changed.set()  # all ranks have passed the last change: each has saved since

    def flushed(self, name: str, seconds: float) -> None:
        """A flush to a lower tier has ended."""
        self._flush_s[name] = seconds

    def tier_every_s(self, name: str) -> float:
        """The time between two saves that go to a lower tier. The first goes there at once, so that it is measured."""
        seconds = self._flush_s.get(name)
        if seconds is None:
            return 0.0
        at = 1 + list(self._config.lower).index(name)
        level = SaveLevel(
            name=name, cost_s=SLOWDOWN * seconds, rate_hz=self._rate_hz() * self._shares()[at], delay_s=seconds,
            restart_s=REQUEUE_S,
        )  # fmt: skip
        every_s = interval_s(level)
        told_s = self._told.get(name, 0.0)
        if max(every_s, told_s) >= _CHANGE * min(every_s, told_s):
            self._told[name] = every_s
            self._report(name, every_s)
        return every_s

    def _best_steps(self) -> int:
        level = SaveLevel(
            name="memory", cost_s=median(self._stall_s), rate_hz=self._rate_hz() * self._shares()[0],
            delay_s=median(self._commit_s), slack=MEMORY_SLACK,
        )  # fmt: skip
        return interval_steps(level, median(self._step_s))

    def _shares(self) -> list[float]:
        beyond = _GPUS.nodes if self._config.redundancy.scheme == "none" else _GPUS.beyond
        return shares(len(self._config.lower), beyond)

    def _rate_hz(self) -> float:
        """Failures of this job per second. The run's age is that of its line of descent, if this run began it."""
        elapsed_s, restored = self._clock() - self._started_s, self._restored()
        if restored is not None and restored.run_id == self._place.run_id:
            elapsed_s = max(elapsed_s, time.time() - restored.line.began_s)
        published_hz = self._place.world_size / (_GPUS.gpu_hours * 3600)
        return observed_rate_hz(published_hz, self._place.attempt, elapsed_s)

    def _report(self, tier: str, every_s: float, **every_steps: int) -> None:
        step_s, stall_s = (median(values) if values else 0.0 for values in (self._step_s, self._stall_s))
        self._listener.to_monitors(
            "cadence", tier=tier, every_s=round(every_s, 3), step_s=round(step_s, 6), stall_s=round(stall_s, 6),
            mtbf_s=round(1 / self._rate_hz(), 1), **every_steps,
        )  # fmt: skip
