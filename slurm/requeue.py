"""How long a requeued job waits before Slurm may start it again, and whether the wait can be left out."""

from __future__ import annotations

import re
from collections.abc import Mapping

_CRED_EXPIRE_S = 120  # Slurm's default of AuthInfo=cred_expire
_EXPEDITED = "enable_expedited_requeue"


def requeue_delay(config: Mapping[str, str]) -> tuple[int, str]:
    """The seconds for which a requeued job waits, and the setting that says so.

    Args:
        config: the controller's configuration, as `Slurm.config` returns it.
    """
    for parameter, name in (("SchedulerParameters", "requeue_delay"), ("AuthInfo", "cred_expire")):
        found = re.search(rf"(?:^|,){name}=(\d+)", config.get(parameter, ""))
        if found is not None:
            return int(found[1]), f"{parameter}={name}={found[1]}"
    return _CRED_EXPIRE_S, "AuthInfo=cred_expire is not set"


def may_expedite(config: Mapping[str, str]) -> bool:
    """Whether `sbatch --requeue=expedite` starts a requeued job at once (Slurm 25.11).

    Slurm then also requeues and holds a job whose batch script ends with an error, so users choose it for a job.
    """
    return any(_EXPEDITED in config.get(name, "").split(",") for name in ("SlurmctldParameters", "SchedulerParameters"))
