"""What the tests of parity between agents share: sets of nodes, saves under each scheme, and what lies in memory."""

from __future__ import annotations

from agent_kit import DEADLINES, World, config, content

from ckpt.agent.protect import gather_sum as sums
from ckpt.redundancy.parity_record import read_parity

NODES = ["a", "b", "c", "d"]
SCHEMES = {"xor": ({"scheme": "xor"}, 1), "rs": ({"scheme": "rs", "parity": 2}, 2)}


def small_pieces(monkeypatch):
    """So that small shards make sums of many pieces, the last one short, and not all terms of one are held at once."""
    monkeypatch.setattr(sums, "PIECE_BYTES", 700)
    monkeypatch.setattr(sums, "HELD", 1)


def of(name, **more):
    return config(**{**SCHEMES[name][0], **more})


def parities(ram_dir):
    """The saves' steps of the parity in a memory directory."""
    return sorted(read_parity(ram_dir, path.stem).save.step for path in ram_dir.glob("parity-*.json"))


async def saved(root, checkpoint, nodes=NODES, ranks_per_node=2, steps=(10, 20), data=content, deadlines=DEADLINES):
    async with World(root, list(nodes), 0, checkpoint, ranks_per_node, deadlines) as world:
        await world.plan()  # as a worker does: the agents hold the namespace then, and have looked at what was there
        for slot, step in enumerate(steps):
            for worker in world.workers:
                worker.save(step, slot, data(worker.rank, step))
            for worker in world.workers:
                await worker.event("committed", step=step)


def instead(lost, nodes=NODES):
    """The nodes, with a spare for each that is lost."""
    return [f"spare-{node}" if node in lost else node for node in nodes]
