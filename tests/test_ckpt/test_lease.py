"""Two runs and one namespace: the one that lives keeps it, one that is dead or done gives it up."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agent_kit import DEADLINES, World, config, lose, run, until

from ckpt.agent.flush.run_liveness import has_ended, identity_of, process_has_ended
from ckpt.errors import CorruptError
from ckpt.tiers.claim import Claim, parse_claim
from ckpt.tiers.nvme import NvmeTier
from ckpt.tiers.posix import SharedTier

NEVER = replace(DEADLINES, quiet_s=3600)  # who has to wait for silence does not come through
CLAIM = Claim(run_id="r", attempt=1, nonce="n", user="u", host="h", job="7", since_s=1.5e9)


def another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_kit.RUN_ID", "run-2")


def test_a_folder_is_made_once_though_the_first_answer_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two calls that both make it would each take the time of its own mark for that of the folder."""
    meeting, prepare, at_once, most = threading.Barrier(2), SharedTier.prepare, set[int](), [0]

    def meets(tier: SharedTier) -> float:
        at_once.add(threading.get_ident())
        most[0] = max(most[0], len(at_once))
        with suppress(threading.BrokenBarrierError):
            meeting.wait(0.5)  # for another call, which does not come
        try:
            return prepare(tier)
        finally:
            at_once.discard(threading.get_ident())

    monkeypatch.setattr(SharedTier, "prepare", meets)

    async def test() -> None:
        hasty = replace(DEADLINES, answer_s=0.05)
        async with World(tmp_path, ["a"], 0, config(tmp_path / "shared"), deadlines=hasty) as world:
            await world.save(10, 0)
            await world.await_saves()
            assert [save.step for save in SharedTier(tmp_path / "shared", "test").steps()] == [10]

    run(test)
    assert most == [1]


def test_nothing_is_written_to_a_tier_that_was_silent_at_first_and_is_another_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_answer(tier: SharedTier) -> Claim | None:
        raise OSError("no answer")

    async def test() -> None:
        tier = SharedTier(tmp_path / "shared", "test")
        tier.prepare()
        tier.write_claim(CLAIM)
        calm = replace(DEADLINES, beat_s=60)
        with monkeypatch.context() as silence:
            silence.setattr(SharedTier, "read_claim", no_answer)
            world = await World(tmp_path, ["a"], 0, config(tmp_path / "shared"), deadlines=calm).__aenter__()
        async with AsyncExitStack() as stack:
            stack.push_async_exit(world.__aexit__)
            await world.save(20, 0)
            problem = await world.monitors[0].event("problem", step=20, failed="shared")
            assert "namespace test is in use in the shared tier by job 7" in problem["detail"]
        assert list(tier.steps()) == []

    run(test)


def test_a_second_run_is_refused_by_name_and_the_first_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        checkpoint = config(tmp_path / "shared")
        async with World(tmp_path, ["a", "b"], 0, checkpoint) as first:
            await first.save(10, 0)
            await first.await_saves()
            another_run(monkeypatch)
            async with World(tmp_path, ["c", "d"], 0, checkpoint) as second:
                for worker in second.workers:
                    error = (await worker.request("plan"))["error"]
                    assert "namespace test is in use in the shared tier by run run-1" in error and "on a (" in error
            await first.save(20, 1)
            await first.await_saves()
            assert [save.step for save in SharedTier(tmp_path / "shared", "test").steps()] == [20, 10]

    run(test)


def test_a_run_that_was_killed_is_succeeded_once_it_has_been_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        checkpoint = config(tmp_path / "shared")
        async with World(tmp_path, ["a"], 3, checkpoint) as first:
            await first.save(10, 0)
            await first.await_saves()
        another_run(monkeypatch)
        async with World(tmp_path, ["b"], 0, checkpoint) as second:
            assert (await second.plan())["step"] == 10
        assert "run run-1 of user" in caplog.text and "has given no sign of life for 0.3 s: taken over" in caplog.text

    run(test)


def test_a_run_that_has_ended_by_the_launchers_word_is_succeeded_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Cancelled, say. The word is asked for again until it is given: the job may still be completing."""
    asked = tmp_path / "asked"
    script = "import sys; from pathlib import Path; p = Path(sys.argv[1]); said = p.exists(); p.write_text(sys.argv[2])"
    command = (sys.executable, "-c", f"{script}; sys.exit(not said)", str(asked))

    async def test() -> None:
        checkpoint = config(tmp_path / "shared")
        async with World(tmp_path, ["a"], 3, checkpoint) as first:
            await first.save(10, 0)
            await first.await_saves()
        another_run(monkeypatch)
        second = World(tmp_path, ["b"], 0, checkpoint, deadlines=NEVER)
        second.places = [replace(place, ended_command=command) for place in second.places]
        async with second:
            problem = await second.monitors[0].event("problem", what="the namespace is claimed in the shared tier")
            assert "by run run-1 of user" in problem["detail"]
            assert (await second.plan())["step"] == 10

    run(test)
    assert asked.read_text() == "run-1"
    assert "run run-1 of user" in caplog.text and "has ended: taken over" in caplog.text


def test_a_run_whose_process_on_this_machine_is_gone_is_succeeded_before_silence_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As the supervisor's of a local job that was cancelled, or a script's that has started its agent itself."""

    async def test() -> None:
        checkpoint = config(tmp_path / "shared")
        owner = subprocess.Popen(["sleep", "60"])
        first = World(tmp_path, ["a"], 3, checkpoint)
        first.places = [replace(place, run_pid=owner.pid) for place in first.places]
        async with first:
            await first.save(10, 0)
            await first.await_saves()
        another_run(monkeypatch)
        async with World(tmp_path, ["b"], 0, checkpoint, deadlines=NEVER, asks_for_plan=False) as second:
            await second.monitors[0].event("problem", what="the namespace is claimed in the shared tier")
            assert "taken over" not in caplog.text
            owner.kill()
            owner.wait()
            assert (await second.plan())["step"] == 10

    run(test)
    assert "the process of run run-1 of user" in caplog.text and "is gone: taken over" in caplog.text


def test_of_a_process_of_another_machine_or_container_nothing_is_known() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        identity = identity_of(process.pid)
        assert not process_has_ended(identity)
        process.kill()
    assert process_has_ended(identity) and identity_of(process.pid) == ""
    boot, namespace, pid, started = identity.split(" ")
    for elsewhere in (f"x {namespace} {pid} {started}", f"{boot} x {pid} {started}", "", "x"):
        assert not process_has_ended(elsewhere)
    assert process_has_ended(f"{boot} {namespace} {os.getpid()} {started}")  # its number is another's by now


@pytest.mark.parametrize("command", [[], ["/nonexistent"], ["/bin/false"], ["/bin/sleep", "30"]], ids=str)
def test_without_a_word_no_run_has_ended(command: list[str]) -> None:
    assert not has_ended(command, "60", timeout_s=0.2)


def test_a_second_run_on_a_node_is_refused_its_disk_while_the_first_lives_and_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no tier that all nodes see bars it."""
    checkpoint = config(scheme="none", nvme={"path": str(tmp_path / "nvme"), "every_steps": 10, "keep": 1})
    (other := tmp_path / "other").mkdir()

    async def test() -> None:
        async with World(tmp_path, ["a"], 0, checkpoint, deadlines=NEVER) as first:
            await first.plan()  # it has its disk from its inventory on
            await first.save(10, 0)
            await first.await_saves()
            another_run(monkeypatch)
            async with World(other, ["a"], 0, checkpoint, deadlines=NEVER) as second:
                error = (await second.workers[0].request("plan"))["error"]
                assert "nvme tier: " in error and "nvme/a/test: in use by run run-1; wait for it to end" in error
            await first.save(20, 1)
            await first.await_saves()
            assert NvmeTier(tmp_path / "nvme", "test", node="a").steps()[0].step == 20
        async with World(other, ["a"], 1, checkpoint, deadlines=NEVER) as second:
            assert (await second.plan())["step"] == 20

    run(test)


def test_the_next_attempt_of_the_same_run_does_not_wait(tmp_path: Path) -> None:
    async def test() -> None:
        checkpoint = config(tmp_path / "shared")
        async with World(tmp_path, ["a"], 0, checkpoint, deadlines=NEVER) as world:
            await world.save(10, 0)
            await world.await_saves()
        lose(tmp_path, "a")
        async with World(tmp_path, ["b"], 1, checkpoint, deadlines=NEVER) as world:
            assert (await world.plan())["step"] == 10

    run(test)


def test_a_run_that_ended_in_peace_is_succeeded_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        checkpoint = config(tmp_path / "shared")
        async with World(tmp_path, ["a"], 0, checkpoint, deadlines=NEVER) as world:
            await world.save(10, 0)
            await world.await_saves()
            world.workers[0].send(op="bye")
            await world.workers[0].request("plan")  # answered in order: the agent has heard it
            world.monitors[0].send(op="shutdown")
            await until(world.tasks[0].done)
        another_run(monkeypatch)
        async with World(tmp_path, ["b"], 0, checkpoint, deadlines=NEVER) as world:
            assert (await world.plan())["step"] == 10

    run(test)


def test_who_finds_himself_replaced_writes_nothing_more_there(tmp_path: Path) -> None:
    """A node that was cut off, or stood still, for longer than the silence that counts as death."""

    async def test() -> None:
        tier = SharedTier(tmp_path / "shared", "test")
        async with World(tmp_path, ["a"], 0, config(tmp_path / "shared")) as world:
            await world.plan()
            await world.save(10, 0)
            await world.await_saves()

            def is_noticed() -> bool:
                tier.write_claim(replace(CLAIM, run_id="run-2"))  # again: the agent may just be about to write its own
                return bool(world.monitors[0].seen("problem"))

            await until(is_noticed)
            problem = await world.monitors[0].event("problem", what="nothing goes to the shared tier any more")
            assert "taken over in the shared tier by job 7 of user u on h" in problem["detail"]
            await world.save(20, 1)
            await world.monitors[0].event("problem", step=20, failed="shared")
            await world.await_saves()
            found = tier.read_claim()
            assert found is not None and found.run_id == "run-2"
            assert [save.step for save in tier.steps()] == [10]

    run(test)


def test_a_directory_that_comes_back_under_a_run_keeps_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file system was not mounted at the start."""
    shared, away, checkpoint = tmp_path / "shared", tmp_path / "away", config(tmp_path / "shared")

    async def test() -> None:
        async with World(tmp_path, ["a"], 0, checkpoint) as earlier:
            await earlier.save(10, 0)
            await earlier.await_saves()
        shared.rename(away)
        (away / "test" / "owner.json").unlink()
        another_run(monkeypatch)
        async with World(tmp_path, ["b"], 0, checkpoint, deadlines=replace(DEADLINES, beat_s=60)) as world:
            await world.save(10, 0)
            await world.await_saves()
            shared.rename(tmp_path / "below the mount point")
            away.rename(shared)
            for slot, step in ((1, 20), (2, 30)):
                await world.save(step, slot)
                problem = await world.monitors[0].event("problem", step=step, failed="shared")
                assert "another folder has come to" in problem["detail"] and "mounted meanwhile" in problem["detail"]
                await world.await_saves()
        (save,) = SharedTier(shared, "test").steps()
        assert (save.step, save.run_id) == (10, "run-1")

    run(test)


def test_a_directory_that_was_removed_under_a_run_is_made_again_and_that_is_said(tmp_path: Path) -> None:
    async def test() -> None:
        calm = replace(DEADLINES, beat_s=60)
        async with World(tmp_path, ["a"], 0, config(tmp_path / "shared"), deadlines=calm) as world:
            await world.save(10, 0)
            await world.await_saves()
            shutil.rmtree(tmp_path / "shared")
            await world.save(20, 1)
            await world.await_saves()
            await world.monitors[0].event("problem", what="the folder of the shared tier was made again")
            assert [save.step for save in SharedTier(tmp_path / "shared", "test").steps()] == [20]

    run(test)


def test_a_claim_that_cannot_be_read_bars_nobody_from_training(tmp_path: Path) -> None:
    async def test() -> None:
        tier = SharedTier(tmp_path / "shared", "test")
        tier.prepare()
        (tier.folder / "owner.json").write_text("[")
        async with World(tmp_path, ["a"], 0, config(tmp_path / "shared")) as world:
            problem = await world.monitors[0].event("problem", what="namespace not claimed in the shared tier")
            assert "owner.json: cannot be read" in problem["detail"]
            assert (await world.plan())["step"] is None
            await world.save(10, 0)
            (tier.folder / "owner.json").unlink()
            await until(tier.read_claim)

    run(test)


def test_a_runs_own_claim_that_was_damaged_is_made_again(tmp_path: Path) -> None:
    async def test() -> None:
        tier = SharedTier(tmp_path / "shared", "test")
        async with World(tmp_path, ["a"], 0, config(tmp_path / "shared")) as world:
            await world.plan()
            await until((tier.folder / "owner.json").exists)
            (tier.folder / "owner.json").write_text("[")
            await until(lambda: (tier.folder / "owner.json").read_text() != "[")
            assert (claim := tier.read_claim()) is not None and claim.run_id == "run-1"
            assert not world.monitors[0].seen("problem")

    run(test)


@pytest.mark.parametrize(
    "change", [{"attempt": "1"}, {"beat": True}, {"run_id": None}, {"since_s": float("nan")}, {"since_s": 1e300}]
)
def test_a_strangers_claim_is_checked(change: dict[str, Any]) -> None:
    value = json.loads(CLAIM.to_bytes())
    assert parse_claim(CLAIM.to_bytes(), "x") == CLAIM
    with pytest.raises(CorruptError, match=r"^x: "):
        parse_claim(json.dumps({**value, **change}).encode(), "x")
    for data in (b"", b"[]", b"{}", b"[" * 100_000):
        with pytest.raises(CorruptError, match=r"^x: "):
            parse_claim(data, "x")
