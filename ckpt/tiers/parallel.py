"""Runs blocking calls in parallel, in daemon threads, so that a call to dead storage never keeps the process alive."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def in_parallel(function: Callable[[T], R], items: Iterable[T], threads: int) -> list[R]:
    """Call a function for each item; returns the results in the order of the items.

    After an error no further call begins. The first error is raised once the running calls have ended.
    """
    todo = list(enumerate(items))
    if len(todo) <= 1 or threads <= 1:
        return [function(item) for _, item in todo]
    todo.reverse()
    results: dict[int, R] = {}
    errors: list[BaseException] = []

    def work() -> None:
        while not errors:
            try:
                index, item = todo.pop()
            except IndexError:
                return
            try:
                results[index] = function(item)
            except BaseException as error:
                errors.append(error)

    workers = [threading.Thread(target=work, name="tier-io", daemon=True) for _ in range(min(threads, len(todo)))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if errors:
        raise errors[0]
    return [results[index] for index in range(len(results))]
