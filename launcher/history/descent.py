"""What a job's events say of steps that it did not continue: in words, for status, console and outcome."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Event = Mapping[str, Any]


def in_words(event: Event) -> str | None:
    """How the job has continued from an older step, or from none; None if the event is not about that."""
    step = event.get("step")
    match event.get("event"):
        case "restore" if passed := passed_over(event):
            return f"{f'continues from step {step}' if step else 'begins at step 0'}{passed}"
        case "restore" if not step and event.get("left"):
            return f"begins at step 0; stays aside: {'; '.join(event['left'])}"
        case "line":
            origin, newest = event.get("origin"), event.get("newest")
            what = "continues no step: the script did not load" if origin is None else f"continues from step {origin}"
            there = f"; the newest step of the namespace is {newest}" if newest is not None else ""
            return f"the save of step {step} {what}{there}"
        case _:
            return None


def passed_over(event: Event) -> str:
    """The newer steps that a restore has passed over, with the reasons; "" if there are none."""
    skipped = event.get("skipped") or ()
    return "".join(f"; step {each['step']} is passed over: {' '.join(each['reason'].split())}" for each in skipped)
