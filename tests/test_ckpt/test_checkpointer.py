"""The face, with a real agent beside it: what a training script sees."""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from trainer_kit import LIMIT_S, Node, checkpointer, settle
from waiting import until

from ckpt import Monitor
from ckpt.agent.rpc.client import AgentClient
from ckpt.config import CheckpointConfig, Place
from ckpt.errors import AgentError, ConfigError, StateError
from ckpt.format.shard_record import read_record
from ckpt.memory.board import Board
from ckpt.tiers.posix import SharedTier
from ckpt.timeouts import WorkerDeadlines
from ckpt.worker.load import shard_reader as saved_module
from ckpt.worker.slots import MAP_THREAD, rate


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path, shared={"path": str(tmp_path / "shared"), "every_steps": 5, "keep": 2})
    yield node
    node.stop()


def settle_threads(name: str) -> None:
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join(LIMIT_S)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 2))
        self.scale = torch.nn.Parameter(torch.randn(3, 5).bfloat16())


class Loader:
    """A data loader's position, as an object that saves itself."""

    def __init__(self) -> None:
        self.epoch, self.seen = 0, torch.zeros(0, dtype=torch.int64)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.seen = state["epoch"], state["seen"]


def training(seed: int) -> tuple[dict[str, Any], Callable[[], float]]:
    """A state, and one step of training on it."""
    torch.manual_seed(seed)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4])
    loader = Loader()
    state: dict[str, Any] = {
        "net": net,
        "optimizer": optimizer,
        "schedule": schedule,
        "loader": loader,
        "rng": torch.get_rng_state(),
        "seen": {"tokens": 0, "losses": [0.0], "shape": (1, 2)},
        "numpy": {"table": np.zeros((3, 4), np.float32), "rng": np.random.RandomState(seed).get_state()},
    }

    def step() -> float:
        torch.set_rng_state(state["rng"])
        data = torch.randn(4, 8)
        loss = net.layers(data).square().sum() + net.scale.float().square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        loader.epoch += 1
        loader.seen = torch.cat([loader.seen, torch.tensor([loader.epoch])])
        state["seen"]["tokens"] += 4
        state["seen"]["losses"].append(loss.item())
        state["numpy"]["table"] += 1
        state["rng"] = torch.get_rng_state()
        return loss.item()

    return state, step


def test_a_run_with_a_restart_ends_with_the_weights_of_a_run_without(node: Node) -> None:
    state, step = training(seed=1)
    straight = [step() for _ in range(6)]
    expected = {name: value.clone() for name, value in state["net"].state_dict().items()}

    state, step = training(seed=1)
    with node.start() as ckpt:
        assert ckpt.load(state) is None
        for i in range(1, 4):
            assert step() == straight[i - 1]
            assert ckpt.should_save(i)
            ckpt.save(i, state)
            assert not ckpt.should_stop(i)
        assert ckpt.failed_saves == 0

    state, step = training(seed=2)
    numpy_table, seen = state["numpy"]["table"], state["seen"]
    with node.start() as ckpt:
        assert ckpt.load(state) == 3
        assert state["numpy"]["table"] is numpy_table and numpy_table.max() == 3
        assert state["seen"] is seen and len(seen["losses"]) == 4 and seen["shape"] == (1, 2)
        assert [step() for _ in range(3)] == straight[3:]
    assert all(torch.equal(value, expected[name]) for name, value in state["net"].state_dict().items())
    assert state["loader"].epoch == 6 and state["loader"].seen.tolist() == [1, 2, 3, 4, 5, 6]
    assert type(state["numpy"]["rng"]) is tuple


def test_what_is_saved_is_the_state_at_the_call(node: Node) -> None:
    """Whatever kind it is of, and although the agent comes to it much later."""

    def make() -> dict[str, Any]:
        base = torch.zeros(1000, 3)
        return {
            "x": base, "part": torch.zeros(8, 8)[::2, 1::3], "array": np.zeros(100_000), "turned": np.zeros((90, 70)).T,
            "steps": 0, "losses": [0.0], "seen": {"of": {1}, "by": Counter(a=1)}, "loader": Loader(),
        }  # fmt: skip

    state = make()
    with node.start() as ckpt:
        assert ckpt.newest_step is None and node.process is not None
        os.kill(node.process.pid, signal.SIGSTOP)
        ckpt.save(1, state)
        for name in ("x", "part", "array", "turned", "steps"):
            state[name] += 1
        state["losses"].append(1.0)
        state["seen"]["of"].add(2)
        state["seen"]["by"].update("ab")
        state["loader"].epoch += 1
        os.kill(node.process.pid, signal.SIGCONT)
    live = make()
    for name in ("x", "part", "array", "turned"):
        live[name] += 7
    with node.start() as ckpt:
        assert ckpt.load(live) == 1
    assert all(not live[name].any() for name in ("x", "part", "array", "turned"))
    assert (live["steps"], live["losses"], live["seen"]) == (0, [0.0], {"of": {1}, "by": Counter(a=1)})
    assert live["loader"].epoch == 0


def test_tensors_of_every_kind_come_back(node: Node) -> None:
    def make(fill: int) -> dict[str, Any]:
        base = torch.arange(24).reshape(4, 6) * fill
        dtypes = [
            torch.bool,
            torch.uint8,
            torch.int16,
            torch.float16,
            torch.bfloat16,
            torch.complex64,
            torch.float8_e5m2,
        ]
        return {
            "dtypes": [base.to(dtype) for dtype in dtypes],
            "empty": torch.zeros(0, 3),
            "scalar": torch.tensor(float(fill)),
            "transposed": base.t(),
            "strided": base[::2, ::3],
            "channels_last": torch.full((2, 3, 4, 4), fill).to(memory_format=torch.channels_last),
            "parameter": torch.nn.Parameter(base.float()),
            "tuple": (torch.tensor([fill]), fill, "text"),
            0: {1: torch.tensor([fill])},
            "a/b~c": torch.tensor([fill]),
            "arrays": [
                np.full((2, 2), fill, np.int8),
                np.array(fill),
                np.full(3, fill, ">f4"),
                np.full((3, 2), fill).T,
            ],
        }

    with node.start() as ckpt:
        ckpt.save(1, make(3))
    live = make(0)
    with node.start() as ckpt:
        ckpt.load(live)

    def flat(value: Any) -> list[Any]:
        if isinstance(value, dict):
            return [leaf for item in value.values() for leaf in flat(item)]
        if isinstance(value, (list, tuple)):
            return [leaf for item in value for leaf in flat(item)]
        return [value]

    for got, expected in zip(flat(live), flat(make(3)), strict=True):
        if isinstance(got, torch.Tensor):
            assert got.dtype == expected.dtype and got.stride() == expected.stride()
            assert torch.equal(
                torch.view_as_real(got) if got.is_complex() else got.float(),
                torch.view_as_real(expected) if got.is_complex() else expected.float(),
            )
        else:
            assert np.array_equal(got, expected) and type(got) is type(expected)


def test_a_mapped_array_is_saved_and_filled(node: Node, tmp_path: Path) -> None:
    written = np.memmap(tmp_path / "a", np.float32, "w+", shape=(3, 2))
    written[:] = 5
    with node.start() as ckpt:
        ckpt.save(1, {"x": written, "y": np.memmap(tmp_path / "a", np.float32, "r", shape=(3, 2))})
    written[:] = 0
    state = {"x": written, "y": np.memmap(tmp_path / "a", np.float32, "r", shape=(3, 2))}
    with node.start() as ckpt:
        assert ckpt.load(state) == 1
    assert (np.fromfile(tmp_path / "a", np.float32) == 5).all()
    assert (state["y"] == 5).all() and type(state["y"]) is np.ndarray, "what cannot be written is replaced"


class Moments(NamedTuple):
    mean: Any
    count: int


def test_tensors_in_containers_of_other_kinds_come_back_in_place(node: Node) -> None:
    def make(fill: float) -> dict[str, Any]:
        return {
            "moments": Moments(torch.full((3,), fill), int(fill)),
            "last": deque([torch.full((2,), fill)], maxlen=4),
            "by": defaultdict(list, {1: [torch.full((1,), fill)]}),
            "torch": torch.__version__,
            "window": {"sizes": torch.Size([2]), "recent": deque([fill], 9)},
        }

    with node.start() as ckpt:
        ckpt.save(1, make(5))
    state = make(0)
    mean, last, by = state["moments"].mean, state["last"], state["by"]
    with node.start() as ckpt:
        assert ckpt.load(state) == 1
    assert repr(state) == repr({**make(5), "torch": str(torch.__version__)})
    assert state["moments"].mean is mean and state["last"] is last and state["by"] is by and by[2] == []


def test_a_second_save_of_the_same_structure_reuses_plan_and_views(node: Node) -> None:
    state = {"w": torch.randn(100), "b": [torch.randn(3)]}
    with node.start() as ckpt:
        for step in range(1, 5):
            ckpt.save(step, state)
            settle(ckpt)
        stager = ckpt._engine._stager
        plan, views = stager._planned[1], dict(stager._views)
        for step in range(5, 8):
            ckpt.save(step, state)
            settle(ckpt)
        assert stager._planned[1] is plan
        assert all(stager._views[index][2] is views[index][2] for index in views)
        state["w"] = torch.randn(200)
        ckpt.save(8, state)
        assert stager._planned[1] is not plan
    live = {"w": torch.zeros(200), "b": [torch.zeros(3)]}
    with node.start() as ckpt:
        assert ckpt.load(live) == 8
    assert torch.equal(live["w"], state["w"])


class Forking(Loader):
    """Forks while it is saved, as another thread may, and notes whether the child collects garbage."""

    def state_dict(self) -> dict[str, Any]:
        here, there = os.pipe()
        if not (child := os.fork()):
            os.write(there, b"yes" if gc.isenabled() else b"no")
            os._exit(0)
        os.waitpid(child, 0)
        self.child_collects = os.read(here, 3)
        os.close(here)
        os.close(there)
        return super().state_dict()


class TestGarbageCollection:
    @pytest.fixture(autouse=True)
    def _enabled_after(self) -> Iterator[None]:
        gc.enable()
        yield
        gc.enable()

    def test_a_save_causes_none(self, node: Node) -> None:
        state = {f"weight {number}": torch.zeros(8) for number in range(400)}
        collected = []

        def note(phase: str, info: dict[str, int]) -> None:
            if phase == "start" and threading.current_thread() is threading.main_thread():
                collected.append(info["generation"])

        with node.start() as ckpt:
            for step in range(1, 4):
                gc.collect()
                gc.callbacks.append(note)
                try:
                    ckpt.save(step, state)
                finally:
                    gc.callbacks.remove(note)
                assert gc.isenabled()
                settle(ckpt)
        assert 1 not in collected and 2 not in collected, collected
        assert len(collected) <= 3, "what a save leaves behind is looked at once"

    def test_a_program_that_wants_none_gets_none(self, node: Node) -> None:
        gc.disable()
        with node.start() as ckpt:
            ckpt.save(1, {"weight": torch.zeros(8)})
            assert not gc.isenabled()

    def test_it_goes_on_after_a_save_that_fails(self, node: Node) -> None:
        with node.start() as ckpt:
            with pytest.raises(StateError, match="cannot store"):
                ckpt.save(1, {"what": object()})
            assert gc.isenabled()

    def test_it_goes_on_in_a_process_forked_during_a_save(self, node: Node) -> None:
        forking = Forking()
        with node.start() as ckpt:
            ckpt.save(1, {"loader": forking})
        assert forking.child_collects == b"yes"


def test_a_load_makes_memory_ready_for_the_saves_to_come(node: Node) -> None:
    ckpt = node.start()
    assert ckpt.load({"x": torch.zeros(1 << 20)}) is None
    slots = [node.ram_dir / f"own-0-{slot}.data" for slot in range(3)]
    until(lambda: all(path.exists() and path.stat().st_blocks * 512 >= 4 << 20 for path in slots))
    ckpt.close()


def test_a_load_from_own_memory_reads_the_slot_where_the_session_has_mapped_it(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    ckpt = node.start()
    saved = {"x": torch.randn(1 << 16)}
    ckpt.save(5, saved)
    settle(ckpt)
    ckpt = node.start()
    assert ckpt.newest_step == 5
    settle_threads(MAP_THREAD)
    monkeypatch.setattr(saved_module, "_map", lambda *_: pytest.fail("mapped a second time"))
    state = {"x": torch.zeros(1 << 16)}
    assert ckpt.load(state) == 5
    assert torch.equal(state["x"], saved["x"])


def test_a_load_from_own_memory_asks_once_where_the_shard_is(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    ckpt = node.start()
    ckpt.save(5, {"x": torch.arange(9.0)})
    settle(ckpt)
    ckpt = node.start()
    assert ckpt.newest_step == 5
    asked = []
    request = AgentClient.request

    def counted(client: AgentClient, op: str, **fields: Any) -> dict[str, Any]:
        asked.append(op)
        return request(client, op, **fields)

    monkeypatch.setattr(AgentClient, "request", counted)
    for _ in range(2):
        state = {"x": torch.zeros(9)}
        assert ckpt.load(state) == 5
        assert torch.equal(state["x"], torch.arange(9.0))
    assert asked == ["open", "open"]  # each load, because the shard may have moved since the last


def test_the_shared_tier_brings_back_what_memory_lost(node: Node) -> None:
    state = {"x": torch.arange(10.0)}
    with node.start() as ckpt:
        for step in range(1, 8):
            state["x"] += 1
            ckpt.save(step, state)
            settle(ckpt)
    node.stop()
    for path in node.ram_dir.glob("own-*"):
        path.unlink()
    live = {"x": torch.zeros(10)}
    with node.start() as ckpt:
        assert ckpt.load(live) == 5
        ckpt.save(6, live)
        assert ckpt.failed_saves == 0
    assert torch.equal(live["x"], torch.arange(10.0) + 5)


def test_a_step_that_is_to_be_flushed_goes_to_the_tiers_whatever_their_cadence(node: Node) -> None:
    with node.start() as ckpt:
        ckpt.save(6, {"x": torch.zeros(10)}, flush=True)
        settle(ckpt)
        ckpt.save(7, {"x": torch.zeros(10)})
        settle(ckpt)
        dcp.save({"x": torch.zeros(10)}, storage_writer=ckpt.dcp_writer(8, flush=True))
    assert [save.step for save in SharedTier(node.shared, "ns").steps()] == [8, 6]


def test_a_step_that_a_tier_is_too_slow_for_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ckpt")
    slow = {"path": str(tmp_path / "shared"), "every_steps": 5, "rate_limit_bytes_s": 100}
    node = Node(tmp_path, shared=slow)
    try:
        ckpt = node.start()
        for step in (5, 10):
            ckpt.save(step, {"x": torch.zeros(8 << 20)})  # of several pieces: only the first is written at once
            until(lambda step=step: f"committed step {step} in the memory" in caplog.text)
        told = "step 10 does not go to the shared tier: step 5 is still on its way there"
        until(lambda: told in caplog.text)
        ckpt.close(wait=False)
    finally:
        node.stop()


def test_a_damaged_block_is_never_returned(node: Node) -> None:
    state = {"x": torch.arange(1000.0)}
    with node.start() as ckpt:
        ckpt.save(5, state)
        settle(ckpt)
        state["x"] += 1
        ckpt.save(6, state)
    node.stop()
    (name,) = [p.stem for p in node.ram_dir.glob("own-*.json") if read_record(node.ram_dir, p.stem).save.step == 6]
    with open(node.ram_dir / f"{name}.data", "r+b") as file:
        file.seek(2000)
        file.write(b"\xff")
    live = {"x": torch.zeros(1000)}
    with node.start() as ckpt:
        assert ckpt.load(live) == 5
    assert torch.equal(live["x"], torch.arange(1000.0))


def test_training_goes_on_when_the_agent_dies(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    state = {"x": torch.zeros(10)}
    with node.start() as ckpt:
        ckpt.save(1, state)
        settle(ckpt)
        node.stop()
        for step in range(2, 5):
            assert ckpt.should_save(step)
            ckpt.save(step, state)
            assert not ckpt.should_stop(step)
        assert ckpt.failed_saves == 3
    assert "saving stops, training goes on" in caplog.text
    with node.start() as ckpt:
        assert ckpt.load(state) >= 1


def test_a_save_without_memory_is_skipped_and_counted(
    node: Node, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    with node.start() as ckpt:
        ckpt.save(1, {"x": torch.zeros(10)})
        with monkeypatch.context() as patch:
            patch.setattr(os, "posix_fallocate", full)
            ckpt.save(2, {"x": torch.zeros(10_000)})
        assert ckpt.failed_saves == 1
        assert "step 2 is dropped: no memory for 40000 bytes" in caplog.text
        ckpt.save(3, {"x": torch.ones(10_000)})
    with node.start() as ckpt:
        assert ckpt.load({"x": torch.zeros(10_000)}) == 3


def test_step_0_is_saved_and_comes_back_from_memory_and_from_disk(node: Node) -> None:
    with node.start() as ckpt:
        assert ckpt.load({"x": 0}) is None and ckpt.should_save(0)
        ckpt.save(0, {"x": 7}, flush=True)
    for _ in ("memory", "shared"):
        with node.start() as ckpt:
            live = {"x": 0}
            assert (ckpt.newest_step, ckpt.load(live), live) == (0, 0, {"x": 7})
        node.stop()
        for path in node.ram_dir.glob("own-*"):
            path.unlink()


def test_the_last_step_that_can_be_stored_comes_back_from_disk(node: Node) -> None:
    step = (1 << 62) - 1
    with node.start() as ckpt:
        assert ckpt.should_save(step)
        ckpt.save(step, {"x": 7}, flush=True)
    node.stop()
    for path in node.ram_dir.glob("own-*"):
        path.unlink()
    with node.start() as ckpt:
        assert ckpt.load(live := {"x": 0}) == step and live == {"x": 7}


@pytest.mark.parametrize("step", [-1, 1.5, "3", None, 1 << 62])
def test_what_is_no_step_is_refused(node: Node, step: Any) -> None:
    with node.start() as ckpt, pytest.raises(StateError, match="expected a whole number of at least 0"):
        ckpt.save(step, {"x": 1})


def test_the_same_step_is_not_saved_twice(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    with node.start() as ckpt:
        ckpt.save(3, {"x": 1})
        ckpt.save(3, {"x": 2}, flush=True)
        ckpt.save(2, {"x": 2})
    assert "step 3 is saved already; save a step once, with flush=True" in caplog.text
    assert "step 3 was saved before it" in caplog.text
    assert ckpt.failed_saves == 2, "also once it is closed"
    live = {"x": 0}
    with node.start() as ckpt:
        assert ckpt.load(live) == 3
    assert live == {"x": 1}


def test_a_second_checkpointer_of_a_process_cannot_save_to_the_same_slots(node: Node) -> None:
    with node.start() as first, node.checkpointer() as second:
        first.save(1, {"x": 1})
        with pytest.raises(ConfigError, match="another Checkpointer of this process saves to the same memory"):
            second.save(2, {"x": 2})
        first.close()
        second.save(3, {"x": 3})
    with node.start() as ckpt:
        assert ckpt.load(live := {"x": 0}) == 3 and live == {"x": 3}


def test_a_stop_is_seen_once_saved_and_flushed(node: Node) -> None:
    node.section["memory"]["every_steps"] = 1000
    with node.start() as ckpt:
        assert ckpt.load({"x": 1}) is None
        assert not ckpt.should_save(1) and not ckpt.should_stop(1)
        with Monitor.connect(node.ram_dir, node.attempt, timeout_s=20) as monitor:
            monitor.stop()
            step = 1
            while True:
                step += 1
                due = ckpt.should_save(step)
                if due:
                    ckpt.save(step, {"x": step})
                    settle(ckpt)
                if ckpt.should_stop(step):
                    break
            assert due
    assert SharedTier(node.shared, "ns").steps()[0].step == step


class TellsSection:
    """An object of the state that notes what the board says of the rank while it is saved."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.section = ""

    def state_dict(self) -> dict[str, Any]:
        self.section = Board.open(self._node.ram_dir).rows()[0].section
        return {"n": 1}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


def test_a_save_and_an_evaluation_are_told_to_the_launcher_while_they_last(node: Node) -> None:
    with node.start() as ckpt:
        saved = TellsSection(node)
        ckpt.should_save(1)
        ckpt.save(1, {"x": saved})
        assert saved.section == "checkpoint"
        board = Board.open(node.ram_dir)
        with ckpt.section("evaluation"):
            assert board.rows()[0].section == "evaluation"
        assert board.rows()[0].section == "step"
        with pytest.raises(ConfigError, match=r"got 'step', expected one of .*, checkpoint, evaluation"):
            ckpt.section("step")


def test_an_agent_that_is_not_there_is_named(tmp_path: Path) -> None:
    place = Place(run_id="r", attempt=0, node="n0", nodes=("n0",), ranks_per_node=1, ram_dir=tmp_path)
    ckpt = checkpointer(place, CheckpointConfig(namespace="ns"), deadlines=WorkerDeadlines(connect_s=0.05))
    with pytest.raises(AgentError, match=r"agent-0.sock: no connection within 0.05 s"):
        ckpt.load({})


def test_saves_and_loads_are_logged_by_rank_0_alone(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ckpt")
    with node.start() as ckpt:
        ckpt.save(4, {"x": torch.zeros(1000)})
    with node.start() as ckpt:
        ckpt.load({"x": torch.zeros(1000)})
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("ckpt")]
    assert any(
        line.startswith("saved step 4 to memory: 4032 bytes in ") and line.endswith((" MB/s", " ms")) for line in lines
    )
    assert any(line.startswith("loaded step 4 of namespace ns from memory: 4000 bytes in ") for line in lines)


def test_the_log_tells_of_every_save_and_tier_and_adds_no_handler(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ckpt")
    before = list(logging.getLogger("ckpt").handlers)
    for _ in range(2):
        with node.start() as ckpt:
            step = ckpt.load({"x": torch.zeros(1000)}) or 0
            ckpt.save(step + 5, {"x": torch.zeros(1000)})
            assert logging.getLogger("ckpt").handlers == before
    text = "\n".join(record.getMessage() for record in caplog.records)
    for line in (
        "saved step 5 to memory: 4032 bytes in ",
        "committed step 5 in the memory of all nodes: 4032 bytes in ",
        "committed step 5 in tier shared: 4032 bytes in ",
        "loaded step 5 of namespace ns from memory: 4000 bytes in ",
        "saved step 10 to memory: 4032 bytes in ",
    ):
        assert text.count(line) == 1, text


def test_no_speed_is_told_of_a_time_too_short_to_measure() -> None:
    assert rate(1 << 30, 4e-5) == "1073741824 bytes in under 1 ms"
    assert rate(5_000_000, 0.25) == "5000000 bytes in 0.250 s, 20 MB/s"


def test_a_step_that_is_saved_is_not_due_again_until_another_state_is_loaded(node: Node) -> None:
    with node.start() as ckpt:
        for step in (10, 20):
            assert ckpt.should_save(step)
            ckpt.save(step, {"x": step})
            assert not ckpt.should_save(step) and not ckpt.should_stop(step)
        assert ckpt.should_save(30)
        assert ckpt.load(state := {"x": 0}) == 20 and state == {"x": 20}
        assert ckpt.should_save(20)
