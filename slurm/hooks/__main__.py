"""`python -m slurm.hooks NAME [ROOT]`: what the scripts in slurm.conf call. See entry.py."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from slurm.hooks.hook import Hook, run_hook
from slurm.hooks.places import Places

if TYPE_CHECKING:
    from collections.abc import Callable

LIMITS_S = {"prolog": 20.0, "epilog": 50.0, "health": 55.0, "reboot": 50.0}
"""Seconds. Slurm ends a HealthCheckProgram after 60, and jobs wait for prologs and epilogs."""


def main(arguments: list[str]) -> int:
    """Runs one hook and returns its exit code."""
    name = arguments[0] if arguments else ""
    places = Places(arguments[1].replace("%n", os.uname().nodename)) if arguments[1:] else Places()
    if name not in LIMITS_S:
        print(f"slurm.hooks: got {name!r}, expected one of {', '.join(LIMITS_S)}", file=sys.stderr)
        return 2
    return run_hook(name, _body(name), places=places, env=_environment(), limit_s=LIMITS_S[name])


def _body(name: str) -> Callable[[Hook], int]:
    """Imports the one hook that runs: each is called thousands of times."""
    body: Callable[[Hook], int] = getattr(__import__(f"slurm.hooks.{name}", fromlist=[name]), name)
    return body


def _environment() -> dict[str, str]:
    return {name.decode(errors="replace"): value.decode(errors="replace") for name, value in os.environb.items()}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
