"""The section `straggler` of a job file: what follows when a rank is slow and all others wait for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from holdfast.settings.keys import key


@dataclass(frozen=True, kw_only=True)
class StragglerSection:
    """Ranks that are slow while they train, and for which the others wait."""

    action: Literal["report", "swap", "off"] = key(
        "report names the rank and its node; swap also has a spare take the node's place at a step that all ranks "
        "agree on; off measures nothing.",
        default="report",
        example="swap",
    )
    factor: float = key(
        "A rank is slow if it works this many times as long as the others, waits left out.",
        default=1.1, ge=1.05, le=100, allow_inf_nan=False, example=1.2,
    )  # fmt: skip
    steps: int = key(
        "The number of last steps that are compared, by their median.",
        default=50, ge=10, le=100_000, unit="steps", example=100,
    )  # fmt: skip
