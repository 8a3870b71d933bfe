"""sbatch's notations of a time limit."""

from __future__ import annotations

import pytest

from slurm import SlurmError
from slurm.time_limit import time_limit_min


@pytest.mark.parametrize(
    ("limit", "minutes"),
    [
        ("90", 90), ("090", 90), ("30:00", 30), ("30:01", 31), ("1:00:00", 60), ("36:00:00", 2160), ("2-12", 3600),
        ("2-12:30", 3630), ("1-0:0:1", 1441), ("0:30", 1), ("UNLIMITED", None), ("infinite", None), ("0", None),
    ],
)  # fmt: skip
def test_a_limit_is_minutes_rounded_up(limit: str, minutes: int | None) -> None:
    assert time_limit_min(limit) == minutes


@pytest.mark.parametrize("limit", ["", "5m", "1:2:3:4", "-5", "1-", "1-2:3:4:5", "1.5", "2 12", "1:00:00\n", "٣"])
def test_what_sbatch_does_not_take_is_refused(limit: str) -> None:
    with pytest.raises(SlurmError, match="expected minutes, MM:SS"):
        time_limit_min(limit)
