"""Somebody removes a node's memory directory while the job runs, as systemd does with RemoveIPC=yes."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agent_kit import content, lose
from mpi_kit import WAIT_S, AgentProcesses
from trainer_kit import Node, settle, solo_directories, solo_namespace
from waiting import until

from ckpt import Checkpointer
from ckpt.agent.rpc.client import Monitor

REMOVED = "memory directory removed"


@pytest.fixture
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.mark.parametrize("redundancy", [{"scheme": "partner"}, {"scheme": "xor"}], ids=lambda value: value["scheme"])
def test_the_next_save_survives_the_loss_of_another_node(root: Path, redundancy: dict[str, Any]) -> None:
    section = {"redundancy": redundancy}
    with AgentProcesses(root, ["a", "b", "c"], 0, section) as agents:
        agents.save(10, 0)
        shutil.rmtree(root / "b")
        while (event := agents.monitors[1].receive(WAIT_S)) is not None and event["event"] != "problem":
            pass
        assert event is not None and event["what"] == REMOVED, agents.log()
        assert (root / "b").stat().st_mode & 0o777 == 0o700
        agents.save(20, 1)
        agents.save(30, 0)
        with Monitor.connect(root / "b", 0, WAIT_S) as monitor:
            monitor.stop()
            until(lambda: (monitor.receive(WAIT_S) or {}).get("event") == "stop_agreed", "the stop")
        assert agents.log().count(REMOVED) == 1
    lose(root, "a")
    with AgentProcesses(root, ["x", "b", "c"], 1, section) as agents:
        for worker in agents.workers:
            plan = worker.request("plan", timeout_s=WAIT_S)
            assert (plan["step"], plan["tier"], plan["skipped"]) == (30, "memory", []), agents.log()
        assert [agents.read(1, rank) for rank in range(3)] == [content(rank, 30) for rank in range(3)]


def test_a_removal_while_a_save_is_staged_costs_that_save_and_no_later_one(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node, state = Node(root), {"x": np.arange(1000.0)}
    try:
        with node.start() as ckpt:
            ckpt.load(state)
            assert not ckpt.should_stop(10)
            ckpt.save(10, state)
            settle(ckpt)
            stage = ckpt._engine._stager.stage_overlapped

            def staged_into_what_was_removed(*args: Any) -> Any:
                shutil.rmtree(node.ram_dir)
                return stage(*args)

            ckpt._engine._stager.stage_overlapped = staged_into_what_was_removed  # type: ignore[method-assign]
            ckpt.save(20, state)
            ckpt._engine._stager.stage_overlapped = stage  # type: ignore[method-assign]
            until((node.ram_dir / "agent-0.sock").exists, "the memory directory")
            assert ckpt.failed_saves == 1 and "step 20 was dropped" in caplog.text
            state["x"] += 1
            ckpt.save(30, state)
            settle(ckpt)
            assert ckpt.failed_saves == 1
            with Monitor.connect(node.ram_dir, 0, WAIT_S) as monitor:
                monitor.stop()
                steps = itertools.count(31)
                until(lambda: ckpt.should_stop(next(steps)), "the stop")
        restored = {"x": np.zeros(1000)}
        with node.start() as ckpt:
            assert ckpt.load(restored) == 30
        assert (restored["x"] == state["x"]).all()
        node.stop()
        shutil.rmtree(node.ram_dir)
        with node.start() as ckpt:  # the next attempt finds nothing, and works
            assert ckpt.load(restored) is None
            ckpt.save(10, state)
            settle(ckpt)
            assert ckpt.failed_saves == 0
    finally:
        node.stop()


def test_a_script_without_a_launcher_ends_well_where_it_was_removed_just_before() -> None:
    state = {"x": np.arange(1000.0)}
    with solo_namespace() as namespace:
        with Checkpointer(namespace=namespace) as ckpt:
            ckpt.load(state)
            (directory,) = solo_directories(namespace)
            removed = directory.rename(directory.with_name(f"removed-{directory.name}"))  # so that nothing comes in
            shutil.rmtree(removed)
        with Checkpointer(namespace=namespace) as ckpt:
            assert ckpt.load(state) is None


def test_a_script_without_a_launcher_goes_on_saving_although_nobody_replaces_its_agent() -> None:
    state = {"x": np.arange(1000.0)}
    with solo_namespace() as namespace, Checkpointer(namespace=namespace) as ckpt:
        ckpt.load(state)
        ckpt.save(1, state)
        settle(ckpt)
        (directory,) = solo_directories(namespace)
        shutil.rmtree(directory)
        until(lambda: list(directory.glob("agent-*.sock")), "the memory directory")
        ckpt.save(2, state)
        settle(ckpt)
        assert (ckpt.newest_step, ckpt.failed_saves) == (2, 0)
