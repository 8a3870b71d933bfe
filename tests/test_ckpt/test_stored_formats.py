"""Steps that other releases have stored: those of 0.2.0 are restored and continued, those of a newer format stay."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import waiting
from agent_kit import World, config, run, until
from trainer_kit import Node, settle
from verb_kit import ckpt as verb

from ckpt.format.line import FIRST
from ckpt.format.manifest import NAME
from ckpt.format.shard_record import SaveId, seal_json
from ckpt.tiers.mark import MARK, new_mark
from ckpt.tiers.posix import SharedTier
from holdfast.base.files import durable_write

STORED = Path(__file__).parent / "stored" / "0.2.0" / "shared"
WEIGHT = "3c8f24678abfaa01e679b77c87922b2487bad378d21a25d97ce795441eb04646"  # sha256 of its bytes at step 3


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A node whose shared directory has the steps 2 and 3 that Holdfast 0.2.0 has saved."""
    shutil.copytree(STORED, tmp_path / "shared")
    if os.getuid():  # the stored mark is root's
        (tmp_path / "shared" / "sample" / MARK).write_bytes(new_mark("sample"))
    shared = {"path": str(tmp_path / "shared"), "every_steps": 1, "keep": 2}
    node = Node(tmp_path, namespace="sample", shared=shared)
    yield node
    node.stop()


def tier(node: Node) -> SharedTier:
    return SharedTier(node.shared, "sample")


def state() -> dict[str, Any]:
    model = torch.nn.Linear(8, 4)
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters()), "epoch": -1, "history": []}


def digest(live: dict[str, Any]) -> str:
    return hashlib.sha256(live["model"].weight.detach().numpy().tobytes()).hexdigest()


def test_a_run_of_release_0_2_0_is_continued_and_its_steps_obey_retention(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    assert [(save.step, save.line) for save in tier(node).steps()] == [(3, FIRST), (2, FIRST)]
    live = state()
    with node.start() as ckpt:
        assert ckpt.load(live) == 3
        assert digest(live) == WEIGHT and live["epoch"] >= 0 and live["history"]
        assert len(live["optimizer"].state_dict()["state"]) == 2
        for step in (4, 5):
            ckpt.save(step, live)
            settle(ckpt)
        assert ckpt.failed_saves == 0
    assert "begins" not in caplog.text
    waiting.until(lambda: [save.step for save in tier(node).steps()] == [5, 4], "retention")
    again = state()
    with node.start() as ckpt:
        assert ckpt.load(again) == 5 and digest(again) == WEIGHT and again["history"] == live["history"]


def test_a_script_goes_back_to_a_step_of_release_0_2_0_and_its_newest_step_stays(node: Node) -> None:
    live = state()
    with node.start() as ckpt:
        assert ckpt.load(live, step=2) == 2
        assert digest(live) != WEIGHT
        for step in (3, 4, 5):
            ckpt.save(step, live)
            settle(ckpt)

    def kept() -> list[SaveId] | None:
        saves = tier(node).steps()
        return saves if len(saves) == 4 else None

    steps = waiting.until(kept, "retention")
    assert [save.step for save in steps] == [5, 4, 2, 3], "the steps that it continues, then the one that it left"
    assert steps[0].line.ancestors == (("", 2),) and steps[2].line == steps[3].line == FIRST
    with node.start() as ckpt:
        assert ckpt.load(live) == 5


def of_a_newer_format(tier: SharedTier) -> list[Path]:
    paths = sorted(tier.folder.glob(f"step-*/{NAME}"))
    for path in paths:
        durable_write(path, seal_json({"format": 3, "since": "0.9.0", "namespace": "sample"}))
    return paths


def test_steps_of_a_newer_format_are_named_with_the_release_that_reads_them(node: Node) -> None:
    of_a_newer_format(tier(node))
    printed = verb("ls", node.shared / "sample")
    assert printed.output.count("written by Holdfast 0.9.0 or newer, in format 3; this release reads format 2") == 2
    assert "DAMAGED" not in printed.output
    printed = verb("verify", node.shared / "sample", "--quarantine")
    assert printed.exit_code != 0 and tier(node).quarantined() == []


def test_a_run_does_not_begin_anew_beside_steps_of_a_newer_format(tmp_path: Path) -> None:
    checkpoint = config(tmp_path / "shared", every_steps=1)

    async def test() -> None:
        shared = SharedTier(tmp_path / "shared", "test")
        async with World(tmp_path, ["a"], 0, checkpoint) as world:
            for slot, step in enumerate((10, 20)):
                await world.save(step, slot)
                await world.await_saves()
        shutil.rmtree(tmp_path / "a")
        manifests = of_a_newer_format(shared)
        async with World(tmp_path, ["a"], 1, checkpoint) as world:
            error = (await world.workers[0].request("plan"))["error"]
            assert "has steps, and none can be restored: step 20: " in error
            assert "written by Holdfast 0.9.0 or newer" in error and "start_fresh: true" in error
            problem = await world.monitors[0].event("problem", what="no restore agreed")
            assert "none can be restored" in problem["detail"]
        assert shared.quarantined() == [] and all(path.exists() for path in manifests)

    run(test)


def test_a_fresh_start_removes_no_steps_of_a_newer_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        shared = SharedTier(tmp_path / "shared", "test")
        async with World(tmp_path, ["a"], 0, config(tmp_path / "shared", every_steps=1)) as world:
            await world.save(10, 0)
            await world.await_saves()
        shutil.rmtree(tmp_path / "a")
        (manifest,) = of_a_newer_format(shared)
        monkeypatch.setattr("agent_kit.RUN_ID", "run-2")
        checkpoint = replace(config(tmp_path / "shared", every_steps=1), start_fresh=True)
        async with World(tmp_path, ["a"], 1, checkpoint) as world:
            assert (await world.plan())["step"] is None
            for step in (20, 30, 40):
                await world.save(step, step // 10 % 2)
                await world.await_saves()
            await until(lambda: [save.step for save in shared.steps()] == [40, 30])
        assert manifest.exists()

    run(test)
