"""The position of a training loop in a stream: an iterable data set, whose library makes the batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ckpt.data.batch_plan import BatchPlan
from ckpt.errors import StateError

Begin = Callable[[int], Iterable[Any]]


class ElasticStream:
    """Counts the samples that all ranks have taken from a stream; its state is the position of the training loop.

        def begin(position):                     # grain: a data set with random access, in its workers
            rest = source.shuffle(seed=1).repeat()[position + rank :: plan.world_size]
            return rest.batch(plan.micro_batch).to_iter_dataset().mp_prefetch(options)

        stream = ElasticStream(begin, plan)
        state = {"model": model, "optimizer": optimizer, "data": stream}
        for batch in stream: ...                 # as with ElasticLoader: stream.ends_step

    The position is one number for all ranks, so a job continues at any world size. What workers have prefetched does
    not count, and neither do micro-batches of a step that is not complete. A library that cannot begin at a position
    gives `loader` instead, an object with state_dict and load_state_dict, whose state is that of its rank: it continues
    at the same world size only, and any other is refused.
    """

    def __init__(self, begin: Begin | None, plan: BatchPlan, *, loader: Any = None) -> None:
        """Starts at position 0.

        Args:
            begin: makes this rank's micro-batches from a position on: the number of samples that all ranks together
                have consumed. Sample `position + i` belongs to rank i modulo the world size.
            plan: from `batch_plan`.
            loader: instead of `begin`.
        """
        if (begin is None) == (loader is None):
            raise TypeError("ElasticStream: expected either begin or loader=")
        self.plan = plan
        self.position = 0
        self._begin = begin
        self._loader = loader
        self._iteration = 0
        self._handed_out = 0

    def __iter__(self) -> Iterator[Any]:
        """The micro-batches from the position on.

        Raises:
            StateError: a later iteration has begun, or a state was loaded; samples prefetched here would repeat.
        """
        self._iteration += 1
        iteration, self._handed_out = self._iteration, 0
        for batch in self._loader if self._begin is None else self._begin(self.position):
            if iteration != self._iteration:
                raise StateError(
                    "ElasticStream: a later iteration has begun, or a state was loaded since this one began; "
                    "iterate over the stream again"
                )
            self._handed_out += 1
            if self.ends_step:
                self.position += self.plan.global_batch
            yield batch
            if self.ends_step:
                self._handed_out = 0

    @property
    def ends_step(self) -> bool:
        """Whether the micro-batch returned last is the last of its step."""
        return self._handed_out == self.plan.accumulation

    def state_dict(self) -> dict[str, Any]:
        """The position; with `loader` also its state, and the world size that it is for."""
        found: dict[str, Any] = {"position": self.position}
        if self._loader is not None:
            found |= {"world_size": self.plan.world_size, "loader": self._loader.state_dict()}
        return found

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Moves to a saved position.

        Raises:
            StateError: the position is damaged, or the library's own state is for another world size.
        """
        position = state.get("position")
        if isinstance(position, bool) or not isinstance(position, int) or position < 0:
            raise StateError(f"ElasticStream: position: got {position!r:.100}, expected a whole number of at least 0")
        if self._loader is not None:
            ranks, name = state.get("world_size"), type(self._loader).__name__
            if ranks != self.plan.world_size:
                raise StateError(
                    f"ElasticStream: the checkpoint has a {name} of {ranks} ranks, this job has "
                    f"{self.plan.world_size}: its state is the position of each rank's own part of the stream, which "
                    "cannot be divided again. Expected the same number of ranks; or a library that begins at a "
                    "position (begin=); or load without the stream (strict=False)"
                )
            self._loader.load_state_dict(state["loader"])
        self.position = position
        self._iteration += 1
        self._handed_out = 0
