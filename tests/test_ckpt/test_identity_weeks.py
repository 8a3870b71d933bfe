"""Random weeks of one user's runs: whatever is done, no start takes fewer steps than before without a word."""

from __future__ import annotations

import contextlib
import logging
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agent_kit import NAMESPACE, World, config, content, run
from crash_kit import Trainers

from ckpt.config import CheckpointConfig
from ckpt.format.line import NOBODY
from ckpt.format.manifest import NAME
from ckpt.format.shard_record import SaveId, seal_json
from ckpt.tiers.lines import lines_of
from ckpt.tiers.posix import SharedTier
from ckpt.worker.descent import Descent, Known

EVERY = 10  # steps between two saves, each of which goes to all tiers
BY_LINE = 1000  # the content of a step differs between lines
DEEDS = (
    "retry", "retry", "new job", "reboot", "size", "tiers", "copy", "older copy", "damage", "format", "unmount",
    "rollback",
)  # fmt: skip
LOADS = ("newest", "newest", "newest", "older", "none", "fresh")


class Week:
    """One user's runs in one namespace.

    Attributes:
        reached: the last step that the user has trained to, or gone back to.
        story: what was done, for a failure.
    """

    def __init__(
        self, root: Path, rng: random.Random, patch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
    ) -> None:
        self._root, self._rng, self._patch, self._log = root, rng, patch, log
        self._shared, self._copies = root / "disk", 0
        self._nodes, self._has_nvme, self._is_mounted = 1, False, True
        self._run, self._attempt = 0, -1
        self.reached = 0
        self.story: list[Any] = []
        patch.setenv("XDG_STATE_HOME", str(root / "state"))
        patch.setattr("ckpt.tiers.last_seen.mount_of", lambda path: "/disk" if self._is_mounted else "/")

    @property
    def _tier(self) -> SharedTier:
        return SharedTier(self._shared, NAMESPACE)

    def do(self, deed: str) -> None:
        """What happens between two runs."""
        self.story.append(deed)
        manifests = sorted(self._shared.glob(f"{NAMESPACE}/step-*/{NAME}"))
        steps = self._tier.steps() if manifests else []
        match deed:
            case "new job":
                self._new_job()
            case "reboot":
                self._lose_memory()
            case "size":
                self._nodes = self._rng.randint(1, 3)
            case "tiers":
                self._has_nvme = not self._has_nvme
            case "copy" if steps:  # to another cluster
                self._shared = self._copied()
                self._new_job()
                shutil.rmtree(self._root / "nvme", ignore_errors=True)
                self.reached = steps[0].step
            case "older copy" if steps:
                older = self._copied()
                for save in steps[: self._rng.randint(1, len(steps))]:
                    (path,) = older.glob(f"{NAMESPACE}/step-{save.step:010d}*{save.line.id}")
                    shutil.rmtree(path)
                shutil.rmtree(self._shared)
                older.rename(self._shared)
            case "damage" if manifests:
                file = self._rng.choice((manifests[-1], manifests[-1].with_name("node-00000.data")))
                file.write_bytes(file.read_bytes()[:-5])
            case "format" if manifests:
                newest = self._rng.choice(manifests[-2:])
                newest.write_bytes(seal_json({"format": 9, "since": "9.0.0", "namespace": NAMESPACE}))
            case "unmount" if steps:
                self._is_mounted = False
                self._shared.rename(self._root / "unmounted")
            case "rollback" if steps:
                base, lines = self._rng.choice(steps), lines_of(self._tier)
                self._tier.begin_line(lines.begin(base, f"rollback {len(self.story)}", NOBODY))
                self.reached = base.step

    def mount(self) -> None:
        if not self._is_mounted:
            shutil.rmtree(self._shared, ignore_errors=True)
            (self._root / "unmounted").rename(self._shared)
            self._is_mounted = True

    def _copied(self) -> Path:
        """A copy as a user makes it. A step on its way out may vanish meanwhile, then it is made again."""
        while True:
            self._copies += 1
            copy, before = self._root / f"disk-{self._copies}", sorted(self._shared.rglob("*"))
            with contextlib.suppress(shutil.Error):
                return Path(shutil.copytree(self._shared, copy, ignore=shutil.ignore_patterns(".*")))
            assert sorted(self._shared.rglob("*")) != before, "nothing has vanished"
            shutil.rmtree(copy)

    def _new_job(self) -> None:
        self._run, self._attempt = self._run + 1, -1
        self._lose_memory()

    def _lose_memory(self) -> None:
        for node in "abc":
            shutil.rmtree(self._root / node, ignore_errors=True)

    def _checkpoint(self, load: str) -> CheckpointConfig:
        nvme = {"path": str(self._root / "nvme"), "every_steps": EVERY, "keep": 2} if self._has_nvme else None
        return replace(config(self._shared, every_steps=EVERY, nvme=nvme), start_fresh=load == "fresh")

    def start(self, load: str) -> bool:
        """One run of the script. Returns False if it was refused, with the reason."""
        self.story.append(load)
        if load == "fresh":
            self._new_job()
        self._attempt += 1
        found: list[bool] = []

        async def train() -> None:
            found.append(await self._train(load))

        self._patch.setattr("agent_kit.RUN_ID", f"run-{self._run}")
        run(train)
        return found[0]

    async def _train(self, load: str) -> bool:
        checkpoint = self._checkpoint(load)
        nodes = list("abc"[: self._nodes])
        async with World(self._root, nodes, self._attempt, checkpoint, asks_for_plan=False) as world:
            plan = await world.plan()
            if "error" in plan:
                assert any(word in plan["error"] for word in ("none can be restored", "on the file system at")), plan
                return False
            trainers = Trainers(world, checkpoint.slots)
            await trainers.load()
            await self._check(world, plan)
            await world.await_saves()  # what was restored may be on its way to a tier
            if self._is_mounted and self._rng.random() < 0.3:
                await self._refuse_another()
            base, descent = await self._loaded(world, plan, load)
            self._log.clear()
            for step in range(base + EVERY, base + EVERY * self._rng.randint(2, 3), EVERY):
                line = descent.advance(step)
                assert line is not None
                await trainers.save(step, line, salt=BY_LINE * line.number)
                if base < (plan["step"] or 0):
                    assert "begins line" in self._log.text, self.story
                    await world.monitors[0].event("line")
                await world.await_saves()
                self.reached = step
            assert plan["save"] or not world.monitors[0].seen("line"), "a start at 0 has been told already"
        return True

    async def _check(self, world: World, plan: dict[str, Any]) -> None:
        """A step has the content of its own line. If it is older than the user's last one, that is said."""
        step = plan["step"] or 0
        if plan["save"]:
            key = step + BY_LINE * plan["save"]["line"]["number"]
            for rank in range(plan["world_size"]):
                assert await world.workers[0].read(rank) == content(rank, key), self.story
        told = await world.monitors[0].event("restore_plan")
        if step < self.reached:
            assert plan["skipped"] or told["left"], f"{self.story}: step {step} after {self.reached}"

    async def _refuse_another(self) -> None:
        """Two at once: the second run is refused."""
        other = self._root / "other"
        other.mkdir(exist_ok=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("agent_kit.RUN_ID", "another")
            async with World(other, ["z"], 0, config(self._shared), asks_for_plan=False) as world:
                error = (await world.plan())["error"]
                assert "is in use in the shared tier by run" in error or "none can be restored" in error, self.story
        shutil.rmtree(other)

    async def _loaded(self, world: World, plan: dict[str, Any], load: str) -> tuple[int, Descent]:
        """What the script has loaded, as its Checkpointer sees it."""
        save = SaveId.from_json(plan["save"]) if plan["save"] else None
        number, began_s = plan["next_line"]
        newest = Known(
            save=save, is_head=plan["is_head"], skipped=bool(plan["skipped"]), next_number=number, began_s=began_s
        )
        descent = Descent(newest, f"{self._run} {self._attempt}", NOBODY, speaks=True)
        if load == "older" and (steps := [each.step for each in self._tier.steps()]):
            replies = [await worker.request("choose", step=steps[-1]) for worker in world.workers]
            save = SaveId.from_json(replies[0]["save"]) if "error" not in replies[0] else save
        if save is not None and load in ("newest", "older"):
            descent.took(save, is_load=True)
            return save.step, descent
        return 0, descent


@pytest.mark.parametrize("seed", range(5))
def test_no_start_takes_fewer_steps_without_a_word(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(seed)
    week = Week(tmp_path, rng, monkeypatch, caplog)
    with caplog.at_level(logging.WARNING):
        for _ in range(7):
            week.do(rng.choice(DEEDS))
            is_trained = week.start(rng.choice(LOADS))
            week.mount()
            if not is_trained and not week.start("newest"):
                assert week.start("fresh"), week.story
