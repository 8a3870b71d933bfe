"""Newer steps are quarantined after a script has gone back to an older step and continued from there."""

from __future__ import annotations

from ckpt.format.shard_record import SaveId
from ckpt.tiers.catalog import run_tag
from ckpt.tiers.tier import Tier


def why_rolled_back(save: SaveId) -> str:
    """The reason that is stored with the newer steps."""
    return f"the script went back to an older step, and continued with step {save.step} in attempt {save.attempt}"


def quarantine_above(tier: Tier, save: SaveId) -> None:
    """Quarantine all committed steps above a save, except those of its own attempt."""
    for entry in list(tier.catalog()):
        is_ours = (entry.run_tag, entry.attempt) == (run_tag(save.run_id), save.attempt)
        if entry.step > save.step and not is_ours and (entry.save or entry.unread):
            tier.quarantine(entry.name, why_rolled_back(save))
