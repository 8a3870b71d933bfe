"""One node's part in writing a run's newest complete step from the nodes' memory to a tier, without agents.

The nodes coordinate through the names of files in the step's directory, so one listing tells a node all that it waits
for:

own-<first>-<last>.a<attempt>.<node>    that node's memory has these ranks' shards, verified; copy-...: as copies
rank-<rank>.data, rank-<rank>.json      a shard, and its part of the manifest
manifest.json                           last: the commit, by any node that finds all ranks there

Every file may be written twice, by several nodes: a rank's bytes are the same on all of them. A step is complete by the
same rule as in a restore: for every rank, some node has a shard that verifies. Every node lists its saves newest first.
So a newer step can still become complete only while some node has not listed any older step. The others wait a while
for such a node, because it may be slow or lost.
"""

from __future__ import annotations

import logging
import re
import time
from pathlib import Path

from ckpt.epilog.request import Request
from ckpt.epilog.scan import is_still, left_in, verified
from ckpt.errors import CheckpointError
from ckpt.format.manifest import NAME, merge, pack
from ckpt.format.shard_record import SaveId, seal_json, unseal_json
from ckpt.tiers.catalog import newest_first
from ckpt.tiers.reads import runs
from ckpt.tiers.tier import Tier
from ckpt.timeouts import EpilogDeadlines

LATE = 0.25  # part of the given time to wait for nodes that have listed nothing
DEADLINES = EpilogDeadlines()
_MOST_RANKS = 99_999  # five digits
_HOLDS = re.compile(r"(own|copy)-([0-9]{5})-([0-9]{5})\.a([0-9]{1,12})\.(.+)")

Holders = dict[int, list[str]]  # nodes by rank, those that saved it first

log = logging.getLogger(__name__)


class FlushSuperseded(CheckpointError):
    """The run has started again, or another run has its namespace. This run writes nothing more there."""


class EpilogFlush:
    """Writes from the memory directory of one node to one tier."""

    def __init__(self, directory: Path, request: Request, tier: Tier) -> None:
        self._directory = directory
        self._request = request
        self._tier = tier
        self._node = request.node
        self._poll_s = 0.5 + request.nodes / 100  # limits the listings per second of all nodes together
        self._left = left_in(directory, request.run_id, request.config.namespace)

    def run(self, deadline_s: float) -> SaveId | None:
        """Returns when the newest step that the nodes can complete is committed, or at the deadline.

        Args:
            deadline_s: on the monotonic clock.

        Returns:
            The committed step; None if the tier already has as new a step, or if no step is complete.

        Raises:
            CheckpointError: the flush is impossible.
            FlushSuperseded: the run has started again, or another run has its namespace.
        """
        told = ""
        while True:
            try:
                return self._run(deadline_s)
            except OSError as error:  # storage may recover, and everything here may be repeated
                if str(error) != told:
                    told = str(error)
                    log.warning("node %s: %s: %s; trying again", self._node, self._tier.where, error)
                if time.monotonic() > deadline_s:
                    return None
                time.sleep(self._poll_s)

    def _run(self, deadline_s: float) -> SaveId | None:
        named: list[SaveId] = []
        unnamed = self._newest_first()
        late_s = (since_s := time.monotonic()) + LATE * (deadline_s - since_s)
        if not unnamed or self._tier.has_since(unnamed[0]):
            return None
        self._check_claim()
        self._tier.prepare()
        while True:
            for index, save in enumerate(named):
                if self._is_whole(save) and (self._is_newest(save) or time.monotonic() > late_s):
                    self._tell_lost(named[:index])
                    return self._bring(save, deadline_s)
            if unnamed:
                save = unnamed.pop(0)
                if not self._tier.has_since(save) and self._name(save):
                    named.append(save)
                continue
            if not named or time.monotonic() > deadline_s:
                self._tell_lost(named)
                return None
            time.sleep(self._poll_s)

    def _newest_first(self) -> list[SaveId]:
        """The saves in this node's memory: those that the newest line continues, then those of lines that were left."""
        return newest_first(sorted(self._left, reverse=True))

    def _name(self, save: SaveId) -> bool:
        """Lists in the tier the verified shards that this node has of a save. False if it has none."""
        left, named = self._left[save], False
        if left.world_size > _MOST_RANKS:
            raise CheckpointError(f"step {save.step}: {left.world_size} ranks, expected at most {_MOST_RANKS}")
        for kind, shards in (("own", left.own), ("copy", left.copies)):
            for rank in list(shards):
                try:
                    verified(self._directory, shards[rank], save, rank)
                except (CheckpointError, OSError) as error:
                    log.warning("node %s: step %d: %s; passed over", self._node, save.step, error)
                    del shards[rank]
            for first, end in runs(sorted(shards)):
                if not named:
                    self._tier.begin(save)
                note = f"{kind}-{first:05d}-{end - 1:05d}.a{self._request.attempt}.{self._node}"
                self._tier.leave_note(save, note, b"")
                named = True
        return named

    def _holders(self, save: SaveId) -> Holders:
        """The holders that all nodes of this attempt have listed."""
        found: dict[int, list[tuple[bool, str]]] = {}
        world = range(self._left[save].world_size)
        for match in filter(None, map(_HOLDS.fullmatch, self._tier.notes(save))):
            if int(match[4]) == self._request.attempt:
                for rank in world[int(match[2]) : int(match[3]) + 1]:
                    found.setdefault(rank, []).append((match[1] == "copy", match[5]))
        return {rank: [node for _, node in sorted(nodes)] for rank, nodes in found.items()}

    def _is_whole(self, save: SaveId) -> bool:
        return len(self._holders(save)) == self._left[save].world_size

    def _is_newest(self, save: SaveId) -> bool:
        """Whether no newer save can become complete: there is none here, or every node has listed its part of this
        one."""
        nodes = {node for nodes in self._holders(save).values() for node in nodes}
        return save == self._newest_first()[0] or len(nodes) >= self._request.nodes

    def _bring(self, save: SaveId, deadline_s: float) -> SaveId | None:
        """Writes this node's part. Commits once all parts are written and it is this node's turn."""
        since_s, complete_s = time.monotonic(), None
        world_size = self._left[save].world_size
        while True:
            names, now = set(self._tier.notes(save)), time.monotonic()
            if NAME in names:
                return save
            missing = [rank for rank in range(world_size) if f"rank-{rank:05d}.json" not in names]
            wrote = self._write_mine(save, missing, now - since_s)
            if not missing:
                complete_s = now if complete_s is None else complete_s
                holding = {node for nodes in self._holders(save).values() for node in nodes}
                if self._is_turn(sorted(holding), now - complete_s, DEADLINES.commit_turn_s):
                    self._commit(save, world_size)
                    continue
            if wrote:
                continue
            if now > deadline_s:
                log.warning(
                    "node %s: step %d did not reach %s in time: rank %s", self._node, save.step, self._tier.where,
                    f"{missing[0]} and {len(missing) - 1} more were not written" if missing else "all are there",
                )  # fmt: skip
                return None
            time.sleep(self._poll_s)

    def _write_mine(self, save: SaveId, missing: list[int], waited_s: float) -> bool:
        """Writes those missing ranks whose turn it is on this node. False if there were none."""
        left, wrote = self._left[save], False
        holders = self._holders(save) if missing else {}
        for rank in missing:
            name = left.own.get(rank) or left.copies.get(rank)
            if name is not None and self._is_turn(holders.get(rank, []), waited_s, DEADLINES.write_turn_s):
                self._check_claim()
                wrote |= self._write(save, rank, name)
        return wrote

    def _write(self, save: SaveId, rank: int, name: str) -> bool:
        """Copies one shard. Raises FlushSuperseded if it was overwritten during the copy."""
        try:
            record, data = verified(self._directory, name, save, rank)
        except (CheckpointError, FileNotFoundError) as error:
            log.warning("node %s: step %d: %s; left to another holder", self._node, save.step, error)
            self._left[save].own.pop(rank, None)
            self._left[save].copies.pop(rank, None)
            return False
        try:
            place = self._tier.write_rank(save, record, data)
        except CheckpointError:
            if NAME in self._tier.notes(save):
                return True
            raise
        if not is_still(self._directory, name, record):
            raise FlushSuperseded(f"step {save.step}: rank {rank} was overwritten in memory: the job is back")
        self._tier.leave_note(save, f"rank-{rank:05d}.json", seal_json(pack(save, [place])))
        return True

    def _is_turn(self, row: list[str], waited_s: float, each_s: float) -> bool:
        """Whether it is this node's turn: each node in `row` gives each of those before it `each_s` seconds."""
        return self._node in row and row.index(self._node) * each_s <= waited_s

    def _commit(self, save: SaveId, world_size: int) -> None:
        notes = (self._tier.read_note(save, f"rank-{rank:05d}.json") for rank in range(world_size))
        shards = merge(save, self._request.config.namespace, world_size, map(unseal_json, notes))
        self._check_claim()
        self._tier.commit(save, world_size, shards)
        log.info("node %s: step %d was only in memory: committed in %s", self._node, save.step, self._tier.where)

    def _check_claim(self) -> None:
        claim, request = self._tier.read_claim(), self._request
        if claim is None:
            return
        if claim.run_id != request.run_id and not claim.released:
            raise FlushSuperseded(f"{self._tier.where}: is now claimed by {claim}; run {request.run_id} writes nothing")
        if claim.run_id == request.run_id and claim.attempt > request.attempt:
            raise FlushSuperseded(f"{self._tier.where}: the job is back, in attempt {claim.attempt}")

    def _tell_lost(self, named: list[SaveId]) -> None:
        for save in named:
            held = self._holders(save)
            lost = [rank for rank in range(self._left[save].world_size) if rank not in held]
            log.warning(
                "node %s: step %d cannot be flushed: no node has listed rank %s. Parity "
                "is not used here; run `holdfast ckpt rebuild --commit-to` while the memory directories exist",
                self._node, save.step, f"{lost[0]} and {len(lost) - 1} more" if lost[1:] else lost,
            )  # fmt: skip
