"""Past actions of healing and open cases: `/var/lib/holdfast/heal.json`, on the controller.

It is written before each action, so that the next healer can continue after a healer has died.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from holdfast.base.files import publish
from lifecycle.errors import LifecycleError
from slurm.hooks.places import SettingsError, read_of_root

HISTORY_FILE = Path("/var/lib/holdfast/heal.json")

REBOOT, REPLACE = "reboot", "replace"  # actions
BY_HAND = "return"  # an administrator has repaired the node and called `holdfast node return`
RETURNED, REPAIRED = "returned", "repaired"  # it passed its check: after REBOOT or REPLACE, or after BY_HAND
FAILED = "failed"  # it did not come back, or did not pass its check
LEMON = "lemon"  # it is left drained
LEFT = "left"  # an administrator has taken over

_VERSION = 1
_MAX_BYTES = 64 << 20
_KEEP_EVENTS = 10_000


@dataclass(frozen=True, kw_only=True)
class HealEvent:
    """An action on a node, or an event of it.

    Attributes:
        time_s: Unix seconds.
        node: its name in Slurm.
        what: one of the words above.
        why: the reason.
    """

    time_s: float
    node: str
    what: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Case:
    """A node that is being healed. It is reserved and gets no jobs until the case is closed.

    Attributes:
        node: its name in Slurm.
        action: REBOOT, REPLACE or BY_HAND.
        why: why it was drained.
        since_s: when it began to start, or its check was submitted, Unix seconds.
        slurmd_started: start time of its slurmd before the action. It changes when the node has started again.
        asked: whether the action was requested and the node is reserved.
        job: the check's job; None before.
        passed_s: when it passed its own check and the one between nodes began, Unix seconds; None before.
        up_since_s: since when its slurmd answers although Slurm waits for its reboot, Unix seconds; None if it does
            not answer.
    """

    node: str
    action: str
    why: str
    since_s: float
    slurmd_started: str
    asked: bool = False
    job: int | None = None
    passed_s: float | None = None
    up_since_s: float | None = None


@dataclass
class HealHistory:
    """The file's content.

    Attributes:
        cases: open cases by node.
        events: all events, oldest first.
    """

    path: Path
    cases: dict[str, Case] = field(default_factory=dict)
    events: list[HealEvent] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> HealHistory:
        """Reads the history; empty if there is no file.

        Raises:
            LifecycleError: the file cannot be trusted or read. An empty history in its place could lead to endless
                reboots.
        """
        try:
            found = json.loads(read_of_root(path, _MAX_BYTES))
            if found["version"] != _VERSION:
                raise ValueError(f"version {found['version']}, expected {_VERSION}")
            return cls(
                path=path,
                cases={name: Case(**case) for name, case in found["cases"].items()},
                events=[HealEvent(**event) for event in found["events"]],
            )
        except FileNotFoundError:
            return cls(path=path)
        except (SettingsError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise LifecycleError(
                f"{path}: no history of healing ({type(error).__name__}: {error}); move it away to begin anew"
            ) from None

    def of(self, node: str) -> list[HealEvent]:
        """A node's events, oldest first."""
        return [event for event in self.events if event.node == node]

    def note(self, event: HealEvent, case: Case | None) -> None:
        """Adds an event and opens, changes or (None) closes the node's case. It is on disk when this returns.

        Raises:
            LifecycleError: it could not be written. Then no action may follow.
        """
        self.events = [*self.events, event][-_KEEP_EVENTS:]
        self.keep(event.node, case)

    def keep(self, node: str, case: Case | None) -> None:
        """Changes the node's case like `note`, without an event."""
        self.cases.pop(node, None)
        if case is not None:
            self.cases[node] = case
        content = {
            "version": _VERSION,
            "cases": {name: asdict(open_case) for name, open_case in self.cases.items()},
            "events": [asdict(event) for event in self.events],
        }
        try:
            publish(self.path, json.dumps(content, indent=1).encode() + b"\n")
        except OSError as error:
            raise LifecycleError(f"{self.path}: cannot be written ({error.strerror}); no node was touched") from None


@contextlib.contextmanager
def only_one(path: Path) -> Iterator[None]:
    """Lets one process at a time heal with this history.

    Raises:
        LifecycleError: another one does, or it cannot be locked.
    """
    lock = path.with_suffix(".lock")
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise LifecycleError(f"{lock}: {error.strerror}; run this as root, or name another --state") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise LifecycleError(f"{path}: another `holdfast node heal` or `return` works with it; wait for it") from None
    finally:
        os.close(descriptor)
