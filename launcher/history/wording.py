"""The words and colours of events and states.

The table of events (`launcher.history.fields`) names them in its rows: a template such as "{node} ready" for most
events, one of the functions here for an event whose words depend on its fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from launcher.core.outcomes import JobOutcome
from launcher.diagnosis.slow_rank import slow_words
from launcher.history.descent import in_words, passed_over

FAILED = (*(outcome for outcome in JobOutcome if outcome.is_failure), "lost")
ENDED_WELL = (JobOutcome.DONE, JobOutcome.HALTED)


class Facts(dict[str, Any]):
    """An event as templates and functions read it: absent fields are None, and common phrases are further fields.

    The phrases are "" if the event lacks their field: `at_step`, `on_node`, `of_namespace`, `taking` (the seconds),
    `because` (the first line of the reason), and `booster` (by the scheduler's id, or its number if that is not known).
    """

    def __init__(self, event: Mapping[str, Any]) -> None:
        super().__init__(event)
        step, node, seconds, namespace = (event.get(key) for key in ("step", "node", "seconds", "namespace"))
        reason = " ".join(str(event.get("reason") or "").strip().partition("\n")[0].split())
        self["at_step"] = f" at step {step}" if isinstance(step, int) else ""
        self["on_node"] = f" on {node}" if node else ""
        self["of_namespace"] = f" of namespace {namespace}" if namespace else ""
        self["taking"] = f" in {seconds:.2f} s" if isinstance(seconds, int | float) else ""
        self["because"] = f": {reason}" if reason else ""
        booster = event.get("job_id") or event.get("allocation")
        self["booster"] = f"booster {booster}" if booster else ""

    def __missing__(self, key: str) -> None:
        return None

    def plural(self, key: str, noun: str) -> str:
        return plural(self[key], noun)

    def names(self, key: str, separator: str = " ") -> str:
        """A list of names as one text; "" if the event lacks it."""
        return separator.join(self[key] or ())


Words = str | Callable[[Facts], str]
Style = str | Callable[[Facts], str]


def plural(count: Any, noun: str) -> str:
    """For example "1 node" or "2 nodes"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def state_style(state: str) -> str:
    """The colour of a state."""
    if state in FAILED:
        return "bold red"
    if state in ENDED_WELL:
        return "bold green"
    return {"training": "green", "recovering": "yellow", "resizing": "yellow", "stopping": "yellow"}.get(state, "bold")


def takeover(event: Facts) -> str:
    lost = f" from {event['predecessor']}" if event["predecessor"] else ""
    return f"supervisor taken over by {event['node']}{lost} (term {event['term']})"


def restore(event: Facts) -> str:
    if not event["step"]:
        return in_words(event) or "nothing to restore, starting at step 0"
    newest = f"newest step to restore: {event['step']}{event['of_namespace']}, from {event['tier']}"
    return f"{newest}{event['taking']}{passed_over(event)}"


def restore_style(event: Facts) -> str:
    return "yellow" if in_words(event) else "cyan"


def loaded(event: Facts) -> str:
    newest, step = event["newest"], event["step"]
    is_older = isinstance(newest, int) and newest > (step or 0)
    older = f"; newer steps up to {newest} are not loaded" if is_older else ""
    whose = f", saved by {event['whose']}," if event["whose"] else ""
    return f"restored step {step}{event['of_namespace']}{whose} from {event['tier']}{event['taking']}{older}"


def cadence(event: Facts) -> str:
    every_s = event["every_s"]
    seconds = f"{every_s:,.0f} s" if isinstance(every_s, int | float) else "?"
    every = f"{event.plural('every_steps', 'step')} ({seconds})" if event["every_steps"] else seconds
    return f"from now on a save goes to {event['tier']} every {every}"


def straggler(event: Facts) -> str:
    slow = slow_words(event["rank"], event["ranks"] or 1, event["factor"] or 1.0, event["part"])
    return f"{event['node']} is slow{event['at_step']}: {slow}"


def fault(event: Facts) -> str:
    kind, class_, detect = event["kind"], event["class"], event["detect"]
    noticed = f" (noticed within {detect:.1f} s)" if isinstance(detect, int | float) else ""
    because = event["because"].replace(f": {event['node']}: ", ": ", 1)  # a runner's reason begins with its node
    of_class = f" ({class_})" if class_ not in (None, "unknown", kind) else ""
    return f"{kind}{of_class}{event['on_node']}{event['at_step']}{because}{noticed}"


def node_out(event: Facts) -> str:
    if event["cause"] is not None:
        return f"{event['node']} has left the job{event['because']}"
    return f"{event['node']} is {'lost' if event['lost'] else 'out for the rest of the job'}{event['because']}"


def node_back(event: Facts) -> str:
    if event["allocation"]:
        return f"{event['node']} may be used again: it was lost as {event['booster']} ended"
    return f"{event['node']} is back"


def node_leaving(event: Facts) -> str:
    if event["allocation"] is None:
        return f"{event['node']} is being left, a spare takes its place{event['because']}"
    return f"{event['node']} leaves with {event['booster']}{event['because']}"


def problem(event: Facts) -> str:
    detail = " ".join(str(event["detail"] or "").split())
    return f"problem: {event['what']}{event['at_step']}{f': {detail}' if detail else ''}"
