"""Every health check there is, in the order of the table. A new check is wired here."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from lifecycle.errors import UsageError
from lifecycle.health import host
from lifecycle.health.check import Check, Level

CHECKS: tuple[Check, ...] = (
    host.memory_file_system,
    host.open_files,
)


def select(level: Level, only: Sequence[str] = (), skip: Sequence[str] = ()) -> list[Check]:
    """The checks of a level, or those named whatever their level.

    Raises:
        UsageError: no check has such a name.
    """
    names = {check.name for check in CHECKS}
    for name in (*only, *skip):
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            raise UsageError(f"no health check {name}; {f'did you mean {near[0]}?' if near else 'see --list'}")
    chosen = [check for check in CHECKS if (check.name in only if only else level in check.levels)]
    return [check for check in chosen if check.name not in skip]
