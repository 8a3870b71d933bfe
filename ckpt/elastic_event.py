"""`elastic_event_detected()`: whether all ranks stop at this step, for scripts without a Checkpointer."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING

from holdfast.base.environment import Variable

if TYPE_CHECKING:
    from ckpt.worker.engine import Engine

_open: weakref.WeakKeyDictionary[Engine, None] = weakref.WeakKeyDictionary()  # in the order of registration
_own: Engine | None = None  # opened here if the script has none


def register(engine: Engine) -> None:
    """Registers a Checkpointer until it is closed."""
    _open[engine] = None


def forget(engine: Engine) -> None:
    """Removes a closed Checkpointer."""
    _open.pop(engine, None)


def elastic_event_detected(env: Mapping[str, str] = os.environ) -> bool:
    """Whether all ranks stop at this step: a resize, a preemption, the time limit, `holdfast stop`.

        for step in ...:
            train_step()
            if elastic_event_detected():
                save(step)
                break

    The same decision as `Checkpointer.should_stop`, under the name that HyperPod's scripts use. All ranks get True at
    the same step, without a collective. Call it once a step, on all ranks, at the same place in the loop. It uses the
    script's open Checkpointer. If there is none, it opens one from the launcher's environment.

    Args:
        env: the environment.

    Returns:
        False if no agent can decide: without the launcher and without a Checkpointer, and in a job without a
        `checkpoint` section.

    Raises:
        AgentError: the node's agent did not reply in time.
    """
    found = known() or _open_own(env)
    return found is not None and found.should_stop(None)


def known() -> Engine | None:
    """The open Checkpointer that counts this process's steps; if none does, the newest."""
    found = list(_open)
    return next((one for one in found if one.counts_steps), found[-1] if found else None)


def opened() -> Engine | None:
    """The Checkpointer that `elastic_event_detected` has opened, as long as it is open."""
    return _own if _own is not None and _own in _open else None


def _open_own(env: Mapping[str, str]) -> Engine | None:
    global _own
    if Variable.RUN_ID not in env or Variable.CHECKPOINT not in env:
        return None
    from ckpt.worker.engine import Engine

    _own = Engine.from_env(env)
    atexit.register(_own.close)
    return _own
