"""Decides from a node's history whether to reboot it, replace it, or leave it drained. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from lifecycle.heal.history import LEMON, REBOOT, REPAIRED, REPLACE, RETURNED, HealEvent, HealHistory
from lifecycle.heal.settings import HealSettings
from slurm.hooks.drains import at_most

_HOUR_S = 3600.0


def next_action(events: Sequence[HealEvent], settings: HealSettings, now_s: float) -> tuple[str, str]:
    """The next action on a drained node, and its reason.

    The node is rebooted first. After `reboots` reboots without success, or a new failure soon after its return, it is
    replaced, once. After that it is a lemon.

    Args:
        events: the node's events, oldest first.
        settings: the settings of healing.
        now_s: Unix seconds.

    Returns:
        REBOOT, REPLACE or LEMON; the reason.
    """
    tried = [event.what for event in _of_this_trouble(events, settings.flap_s, now_s)]
    flapped = bool(tried) and tried[-1] == RETURNED
    reboots = tried.count(REBOOT)
    if reboots < settings.reboots and not flapped:
        return REBOOT, f"reboot {reboots + 1} of {settings.reboots}"
    said = (
        f"failed again within {settings.flap_s / 60:g} min of its return" if flapped else f"{reboots} reboots in vain"
    )
    if settings.replace == "none":
        return LEMON, said
    return (REPLACE, said) if REPLACE not in tried else (LEMON, f"{said}, replaced before")


def held_back(history: HealHistory, settings: HealSettings, nodes: int, now_s: float) -> str:
    """The limit that forbids another reboot or replacement now; empty if none does.

    Args:
        history: all nodes' cases and events.
        settings: the limits.
        nodes: how many the cluster has.
        now_s: Unix seconds.
    """
    most = at_most(settings.max_drained, nodes)
    if len(history.cases) >= most:
        return f"{len(history.cases)} nodes are being healed, max_drained is {settings.max_drained} of {nodes}"
    lately = [e for e in history.events if e.what in (REBOOT, REPLACE) and now_s - e.time_s < _HOUR_S]
    if len(lately) >= settings.max_actions_per_hour:
        return f"{len(lately)} actions within the last hour, max_actions_per_hour is {settings.max_actions_per_hour}"
    return ""


def _of_this_trouble(events: Sequence[HealEvent], flap_s: float, now_s: float) -> list[HealEvent]:
    """The events since the node was last healthy: repaired by hand, or returned and healthy for long enough."""
    found: list[HealEvent] = []
    next_s = now_s
    for event in reversed(events):
        if event.what == REPAIRED or (event.what == RETURNED and next_s - event.time_s > flap_s):
            break
        found.insert(0, event)
        next_s = event.time_s
    return found
