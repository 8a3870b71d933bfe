"""How nodes add parity up: sums in pieces over the members, rows made together; each byte leaves its node once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from agent_kit import DEADLINES, World, content, run, save_id, until
from parity_kit import NODES, of, saved, small_pieces

from ckpt.agent.protect import gather_sum as sums
from ckpt.errors import AgentError


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch):
    small_pieces(monkeypatch)


def test_each_byte_of_a_shard_leaves_its_node_once_whatever_the_number_of_rows(tmp_path):
    """And each row but the first once more, from the member that makes it to the one that keeps it."""
    sent = []

    async def test():
        async with World(tmp_path, list("abcdef"), 0, of("rs", parity=3)) as world:
            for agent in world.agents:
                agent._peers.send = counted(agent._peers.send, sent)
            for worker in world.workers:
                worker.save(10, 0, content(worker.rank, 10, 30_720))
            for worker in world.workers:
                await worker.event("committed", step=10)

    run(test)
    assert sum(sent) == 6 * 30_720 + 6 * 2 * 30_720 // 3


def counted(send, sent):
    return lambda node, tag, data: sent.append(len(data)) or send(node, tag, data)


@pytest.mark.parametrize("lengths", [[5000] * 4, [0, 9000, 1, 300]], ids=str)
def test_rows_whose_maker_is_late_are_made_by_those_who_keep_them(tmp_path, lengths):
    async def test():
        for root, deadlines in (("at once", DEADLINES), ("alone", replace(DEADLINES, rows_s=0.0))):
            (tmp_path / root).mkdir()
            data = lambda rank, step: content(rank, step, lengths[rank])  # noqa: E731
            await saved(tmp_path / root, of("rs"), ranks_per_node=1, steps=(10,), data=data, deadlines=deadlines)
        for node in NODES:
            made, alone = ((tmp_path / root / node / "parity-0.data").read_bytes() for root in ("at once", "alone"))
            assert made == alone and any(made)

    run(test)


def test_a_row_is_given_to_the_member_that_keeps_it_and_to_no_other(tmp_path):
    async def test():
        async with World(tmp_path, NODES, 0, of("rs")) as world:
            await world.save(10, 0)
            parity = world.agents[0]._protect
            save = save_id(10)
            over, _ = await parity._over(save, ((0,), (1,), (2,), (3,)))
            for source, row in ((2, 1), (1, 2), (0, 0), (3, -1)):
                with pytest.raises(AgentError, match=r"row .* is not that of node"):
                    await parity._rows._on_row(source, save, over, row, tag=7)

    run(test)


def test_a_member_that_cannot_serve_is_named_with_the_others_of_its_sum(tmp_path):
    async def test():
        async with World(tmp_path, ["a", "b", "c"], 0, of("xor")) as world:
            await world.save(10, 0)
            parity = world.agents[0]._protect
            save = save_id(10)
            over, _ = await parity._over(save, ((0,), (1,), (2,)))
            addends = [
                sums.Addend(
                    node=n, coefficients=(1,), parts=(sums.HeldBytes(rank=rank, parity=False, start=0, nbytes=9, at=0),)
                )
                for n, rank in ((1, 7), (2, 2))
            ]
            with pytest.raises(
                Exception, match=r"sum over b, c: node c: sum: node b: parts: rank 7 of step 10 is not held here"
            ):
                await parity._sums.pull(save, over, addends, 9, lambda start, stop: memoryview(bytearray(9)))

    run(test)


def test_a_sum_has_a_bounded_number_of_pieces_under_way_however_long_the_shards(tmp_path):
    """Who wants it takes nothing: its maker receives a window's worth beside what it could send, and no more."""
    received = []

    async def test():
        async with World(tmp_path, ["a", "b", "c"], 0, of("xor")) as world:
            for worker in world.workers:
                worker.save(10, 0, content(worker.rank, 10, 700 * 100))
            for worker in world.workers:
                await worker.event("committed", step=10)
            peers = world.agents[1]._peers
            receive = peers.receive
            peers.receive = lambda node, tag, into: received.append(len(into)) or receive(node, tag, into)
            part = sums.HeldBytes(rank=0, parity=False, start=0, nbytes=70_000, at=0)
            addends = [sums.Addend(node=n, coefficients=(1,), parts=(replace(part, rank=n),)).to_json() for n in (0, 1)]
            save = save_id(10)
            over, _ = await world.agents[0]._protect._over(save, ((0,), (1,), (2,)))
            maker = world.agents[1]._protect._sums
            await maker._on_sum(2, addends=addends, save=save, over=over, nbytes=70_000, tag=77)
            offered = world.fake.ranges[(1, 2, 77)][0]
            await until(lambda: len(offered) == sums.LEAVING)
            before = len(received)
            assert before == sums.ARRIVING + sums.LEAVING - 1  # and now nothing moves until node c takes a piece
            taken = memoryview(bytearray(700))
            world.fake.transports[2].receive_range(1, 77, taken)
            await until(lambda: len(received) == before + 1 and len(offered) == sums.LEAVING)
            both = zip(content(0, 10, 70_000)[:700], content(1, 10, 70_000)[:700], strict=True)
            assert bytes(taken) == bytes(a ^ b for a, b in both)

    run(test)
