"""Which steps may go, which is the newest, who takes over: small decisions, each of which would cost a step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tier_kit import WORLD, save_id, shard

from ckpt import newest_steps
from ckpt.errors import CorruptError
from ckpt.format.manifest import Manifest, new_manifest, parse_manifest
from ckpt.format.shard_record import seal_json
from ckpt.tiers.catalog import CatalogEntry
from ckpt.tiers.claim import Claim
from ckpt.tiers.posix import SharedTier
from ckpt.tiers.retention import superfluous
from ckpt.tiers.tier import node_places


def manifest(step: int) -> Manifest:
    save = save_id(step)
    return new_manifest(save, WORLD, 0.0, node_places("node-00000.data", [shard(save, r)[0] for r in range(WORLD)]))


def entry(step: int, *, committed: bool = True, attempt: int = 0, run: str = "ours") -> CatalogEntry:
    return CatalogEntry(
        name=f"{step}.{attempt}.{run}", step=step, attempt=attempt, run_tag=run,
        manifest=manifest(step) if committed else None, reason=None, damaged=False,
    )  # fmt: skip


def gone(*entries: CatalogEntry, keep: int = 1, complete: set[int] | None = None) -> set[str]:
    saves = None if complete is None else {save_id(step) for step in complete}
    return {found.name for found in superfluous(entries, keep, saves)}


def test_what_is_not_complete_on_all_nodes_pushes_nothing_out() -> None:
    assert gone(entry(30), entry(20), complete={20}) == set()
    assert gone(entry(30), entry(20), complete={30, 20}) == {"20.0.ours"}
    assert gone(entry(30), entry(20), entry(10), complete={30, 10}) == {"20.0.ours", "10.0.ours"}


def test_at_least_the_newest_committed_step_stays() -> None:
    assert gone(entry(20), entry(10), keep=0) == {"10.0.ours"}


def test_a_half_written_step_goes_with_a_newer_one_of_its_own_run_alone() -> None:
    steps = [entry(30), entry(25, committed=False), entry(24, committed=False, run="theirs"), entry(20)]
    assert gone(*steps, keep=2) == {"25.0.ours"}


def test_a_half_written_repetition_of_the_newest_step_stays() -> None:
    """A later attempt may be writing it."""
    assert gone(entry(20, attempt=1, committed=False), entry(20)) == set()


def test_as_many_steps_as_a_long_run_leaves_are_told_apart_in_no_time() -> None:
    """Each compared with each other would take hours: the test's own limit ends that."""
    newest = manifest(1)
    steps = [
        replace(entry(step, committed=False), manifest=replace(newest, save=save_id(step)) if step % 2 else None)
        for step in range(100_000, 0, -1)
    ]
    assert len(gone(*steps, keep=5)) == 100_000 - 6


def test_the_newest_step_is_the_newest(tmp_path) -> None:  # type: ignore[no-untyped-def]
    tier = SharedTier(tmp_path, "ns")
    tier.prepare()
    for step in (10, 20):
        save = save_id(step)
        tier.commit(save, WORLD, tier.write_node(save, 0, [shard(save, rank) for rank in range(WORLD)]))
    assert newest_steps({"namespace": "ns", "shared": {"path": str(tmp_path)}}) == {"shared": 20}


def test_an_attempt_started_again_takes_its_own_claim_over() -> None:
    claim = Claim(run_id="r", attempt=1, nonce="n", user="u", host="h", job="7", since_s=1.5e9)
    assert claim.yields_to(replace(claim, nonce="m")) and not claim.yields_to(replace(claim, attempt=0))


def test_a_sealed_manifest_without_each_rank_or_of_another_kind_is_refused() -> None:
    whole = manifest(10)
    assert parse_manifest(seal_json(whole.to_json())).save == whole.save
    with pytest.raises(CorruptError, match="expected one of each rank"):
        parse_manifest(seal_json({**whole.to_json(), "world_size": WORLD + 1}))
    with pytest.raises(CorruptError, match="expected one node"):
        parse_manifest(seal_json(whole.to_json()), partial=True)
