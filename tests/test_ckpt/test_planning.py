"""The account that is made beforehand is what agents and tiers then really take, and really survive."""

from __future__ import annotations

from collections import Counter
from glob import glob
from itertools import combinations
from pathlib import Path

import pytest
from agent_kit import FakeTransport, World, config, content, run, until

from ckpt.capacity import CapacityPlan, Rates, make_plan, survives
from ckpt.cli.plan import parse_size
from ckpt.config import CheckpointConfig
from ckpt.errors import ConfigError
from ckpt.redundancy import scheme_of, sets_over

NODES = ["a", "b", "c", "d", "e"]
RANKS, NBYTES = 2, 41_000  # no multiple of a page, nor of the stripes' cuts


def plan_of(checkpoint: CheckpointConfig, nodes: int = len(NODES), **more: object) -> CapacityPlan:
    sizes = {"ranks_per_node": RANKS, "shard_bytes": NBYTES, "rates": Rates(), **more}
    return make_plan(checkpoint, nodes=nodes, **sizes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "redundancy", [{"scheme": "partner", "copies": 2}, {"scheme": "xor"}, {"scheme": "rs", "parity": 2}]
)
def test_agents_take_the_memory_the_wire_and_the_disk_that_were_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, redundancy: dict[str, object]
) -> None:
    checkpoint = config(nvme={"path": str(tmp_path / "nvme"), "every_steps": 10, "keep": 2}, **redundancy)  # type: ignore[arg-type]
    planned = plan_of(checkpoint)
    sent: Counter[int] = Counter()
    send = FakeTransport.send_range

    def counted(self: FakeTransport, to: int, tag: int, data: memoryview) -> object:
        sent[self.rank] += len(data)
        return send(self, to, tag, data)

    monkeypatch.setattr(FakeTransport, "send_range", counted)
    saves = planned.memory.slots + 1  # one name more than there are is asked for

    def on_disk() -> list[Path]:  # glob, unlike Path.rglob, takes it well that a directory goes while it looks
        return [tmp_path / "nvme" / name for name in glob("*/*/*/node-*.data", root_dir=tmp_path / "nvme")]

    async def test() -> None:
        async with World(tmp_path, NODES, 0, checkpoint, ranks_per_node=RANKS) as world:
            for turn in range(saves):
                step = 10 * (turn + 1)
                for worker in world.workers:
                    worker.save(step, turn % planned.memory.slots, content(worker.rank, step, NBYTES))
                for worker in world.workers:
                    await worker.event("committed", step=step)
                await world.await_saves()
            kept = len(NODES) * planned.flushes[0].keep
            await until(lambda: len(on_disk()) == kept)

    run(test)
    assert max(sent.values()) == saves * planned.wire_bytes
    for kind, expected in (("own-*", planned.memory.own_bytes), ("[cp]*-*", planned.memory.redundancy_bytes)):
        held = [sum(path.stat().st_size for path in (tmp_path / node).glob(f"{kind}.data")) for node in NODES]
        assert max(held) == expected, kind
    (flush,) = planned.flushes
    files = [path.stat().st_size for path in on_disk()]
    assert set(files) == {flush.node_bytes} and flush.held_bytes == 3 * flush.node_bytes


@pytest.mark.parametrize("redundancy", [
    {"scheme": "none"}, {"scheme": "partner"}, {"scheme": "partner", "copies": 2}, {"scheme": "xor"},
    {"scheme": "rs", "parity": 2},
])  # fmt: skip
@pytest.mark.parametrize("nodes", [1, 2, 5, 9])
def test_any_loss_that_is_promised_is_survived_and_one_node_more_is_not_always(
    nodes: int, redundancy: dict[str, object]
) -> None:
    sets_of = {} if redundancy["scheme"] == "none" else {"group_size": 4}
    checkpoint = config(**sets_of, **redundancy)  # type: ignore[arg-type]
    promised = plan_of(checkpoint, nodes).losses.any_nodes
    scheme, sets = scheme_of(checkpoint.redundancy), sets_over(nodes, checkpoint.redundancy, ())
    assert all(survives(scheme, sets, lost) for lost in combinations(range(nodes), promised))
    assert not all(survives(scheme, sets, lost) for lost in combinations(range(nodes), promised + 1))


def test_a_switch_is_survived_when_sets_are_cut_across_switches() -> None:
    domains = ["s1"] * 4 + ["s2"] * 4
    across = config(scheme="xor", group_size=2, failure_domain="switch")
    along = config(scheme="xor", group_size=8)
    assert plan_of(across, 8, domains=domains).losses.any_switch is True
    assert plan_of(along, 8, domains=domains).losses.any_switch is False
    assert plan_of(along, 8).losses.any_switch is None


def test_times_follow_the_slower_of_rate_and_limit() -> None:
    tiers = {"nvme": {"path": "/nvme", "rate_limit_bytes_s": 10**9}, "shared": {"path": "/shared"}}
    section = {"namespace": "ns", "redundancy": {"scheme": "partner"}, **tiers}
    rates = Rates(wire=10.0, nvme=4.0, shared=2.0)
    planned = make_plan(
        CheckpointConfig.from_mapping(section), nodes=4, ranks_per_node=1, shard_bytes=8 * 10**9, rates=rates
    )
    assert planned.protect_s == pytest.approx(0.8)
    assert {flush.tier: flush.seconds for flush in planned.flushes} == pytest.approx({"nvme": 8.0, "shared": 16.0})


@pytest.mark.parametrize(("text", "nbytes"), [("70GB", 70 * 10**9), ("1.5 KiB", 1536), ("5", 5), ("2M", 2 * 10**6)])
def test_sizes_are_read_in_either_kind_of_unit(text: str, nbytes: int) -> None:
    assert parse_size(text, "--x") == nbytes


@pytest.mark.parametrize("text", ["", "GB", "-1", "0", "1e9", "5 parsecs", "9999999PB", "nan"])
def test_what_is_no_size_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="--x: got"):
        parse_size(text, "--x")
