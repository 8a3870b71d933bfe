"""What each account has used: its own nodes, and those that it has borrowed as boosters."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from slurm import SlurmError

_BOOSTER = re.compile(r".+-booster-of-\d+(-b\d+)?", re.DOTALL)  # see launcher.clusters.slurm.boosters.booster_name
_HOUR_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class Usage:
    """One account's use.

    Attributes:
        own_node_h: node-hours of all jobs but boosters.
        borrowed_node_h: node-hours of boosters.
        jobs, boosters: number of jobs and boosters that ran.
    """

    account: str
    own_node_h: float = 0.0
    borrowed_node_h: float = 0.0
    jobs: int = 0
    boosters: int = 0

    def with_job(self, node_h: float, *, is_booster: bool) -> Usage:
        if is_booster:
            return replace(self, borrowed_node_h=self.borrowed_node_h + node_h, boosters=self.boosters + 1)
        return replace(self, own_node_h=self.own_node_h + node_h, jobs=self.jobs + 1)


def usage_of(rows: Iterable[str]) -> list[Usage]:
    """The use of each account, the largest first.

    Args:
        rows: account|nodes|seconds|name, as `Slurm.used` returns them.

    Raises:
        SlurmError: a line is none of these.
    """
    found: dict[str, Usage] = {}
    for row in rows:
        words = row.split("|", 3)
        if len(words) != 4 or not words[1].isdecimal() or not words[2].isdecimal():
            raise SlurmError(f"sacct printed {row[:120]!r}, expected Account|AllocNodes|ElapsedRaw|JobName")
        account, nodes, seconds, name = words[0] or "none", int(words[1]), int(words[2]), words[3]
        if nodes and seconds:
            used = found.get(account, Usage(account=account))
            node_h = nodes * seconds / _HOUR_S
            found[account] = used.with_job(node_h, is_booster=_BOOSTER.fullmatch(name) is not None)
    return sorted(found.values(), key=lambda each: (-each.own_node_h - each.borrowed_node_h, each.account))
