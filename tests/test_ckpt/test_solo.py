"""A training script without a launcher: its own agent, its own memory directory, and what it is refused."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from trainer_kit import LIMIT_S, processes, settle, solo_directories, solo_namespace
from waiting import until

from ckpt import Checkpointer, newest_steps
from ckpt.config import CheckpointConfig
from ckpt.errors import ConfigError
from ckpt.tiers.claim import Claim
from ckpt.tiers.posix import SharedTier
from ckpt.worker.standalone.memory_dir import memory_directory, read_note, run_id


@pytest.fixture
def namespace() -> Iterator[str]:
    with solo_namespace() as name:
        yield name


def _script(namespace: str, shared: Path, results: Any) -> None:
    state = {"x": torch.zeros(4), "n": 0}
    with Checkpointer(
        config={"namespace": namespace, "memory": {"every_steps": 4}, "shared": {"path": shared, "every_steps": 4}}
    ) as ckpt:
        first = ckpt.load(state) or 0
        assert state["n"] == first and state["x"].eq(first).all()
        for step in range(first + 1, first + 5):
            state["x"] += 1
            state["n"] = step
            if ckpt.should_save(step):
                ckpt.save(step, state)
    results.put((first, ckpt.failed_saves))


def run_script(namespace: str, shared: Path) -> int:
    """Runs a training script by itself, four steps; returns where it resumed."""
    results = processes.Queue()
    process = processes.Process(target=_script, args=(namespace, shared, results))
    process.start()
    process.join(LIMIT_S)
    assert process.exitcode == 0
    first, failed = results.get(timeout=LIMIT_S)
    assert failed == 0
    return int(first)


def test_a_script_without_a_launcher_resumes_from_memory_then_disk_then_afresh(namespace: str, tmp_path: Path) -> None:
    assert run_script(namespace, tmp_path) == 0
    assert run_script(namespace, tmp_path) == 4
    (ram_dir,) = solo_directories(namespace)
    assert not list(ram_dir.glob("*.sock"))
    shutil.rmtree(ram_dir)
    assert run_script(namespace, tmp_path) == 8
    shutil.rmtree(tmp_path / namespace)
    assert run_script(namespace, tmp_path) == 0


def _rank(namespace: str, rank: int, both_connected: Any, results: Any) -> None:
    """Rank 1 is late: it goes on using the agent when rank 0 has begun to close."""
    env = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ.update(env)
    with Checkpointer(namespace=namespace) as ckpt:
        session = ckpt._engine.connect()
        both_connected.wait(LIMIT_S)
        if rank == 1:
            until(lambda: read_note(ckpt._engine.place.ram_dir).get("launch") == "", "rank 0 to close")
            for _ in range(200):
                session.await_saves()
    results.put(session._link.is_gone)


def test_the_agent_stays_until_the_last_rank_has_closed(namespace: str) -> None:
    results, both_connected = processes.Queue(), processes.Barrier(2)
    ranks = [processes.Process(target=_rank, args=(namespace, rank, both_connected, results)) for rank in (1, 0)]
    for process in ranks:
        process.start()
    assert [results.get(timeout=LIMIT_S) for _ in ranks] == [False, False]
    for process in ranks:
        process.join(LIMIT_S)
        assert process.exitcode == 0


def _refused(namespace: str, results: Any) -> None:
    try:
        Checkpointer(namespace=namespace).close()
        results.put("")
    except ConfigError as error:
        results.put(str(error))


def test_a_namespace_in_use_on_this_node_is_refused(namespace: str) -> None:
    results = processes.Queue()
    with Checkpointer(namespace=namespace):
        process = processes.Process(target=_refused, args=(namespace, results))
        process.start()
        assert "is in use by another process" in results.get(timeout=LIMIT_S)
        process.join(LIMIT_S)
    Checkpointer(namespace=namespace).close()


def test_a_second_checkpointer_of_a_process_closes_the_first_and_continues_it(
    namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As when the cell of a notebook is run again."""
    state = {"n": 1}
    first = Checkpointer(namespace=namespace)
    first.save(1, state)
    with Checkpointer(namespace=namespace) as second:
        assert f"namespace {namespace}: the Checkpointer that this process has open is closed" in caplog.text
        assert second.load(state) == 1
        for use in (lambda: first.save(2, state), lambda: first.load(state), lambda: first.newest_step):
            with pytest.raises(ConfigError, match="this Checkpointer is closed; make another one"):
                use()
        first.close()
        second.save(2, state)
    with Checkpointer(namespace=namespace) as third:
        assert third.load(state) == 2


def test_the_last_step_reaches_the_lower_tiers_at_the_end(namespace: str, tmp_path: Path) -> None:
    config = {"namespace": namespace, "shared": {"path": str(tmp_path), "every_steps": 1000}}
    with Checkpointer(config=config) as ckpt:
        for step in (1, 2):
            ckpt.save(step, {"n": step})
            settle(ckpt)
        assert newest_steps(config) == {"shared": None}
    assert newest_steps(config) == {"shared": 2}


def test_a_fresh_start_begins_at_0_and_the_steps_that_are_there_stay(namespace: str, tmp_path: Path) -> None:
    config: dict[str, Any] = {"namespace": namespace, "shared": {"path": str(tmp_path), "every_steps": 1, "keep": 2}}
    for fresh, expected in ((False, None), (True, None), (False, 3)):
        with Checkpointer(config=config | {"start_fresh": fresh}) as ckpt:
            assert ckpt.load(live := {"n": 0}) == expected and live["n"] == (expected or 0)
            for step in (5, 6) if expected is None and not fresh else (3,) if fresh else ():
                ckpt.save(step, {"n": step})
                settle(ckpt)
    steps = SharedTier(tmp_path, namespace).steps()
    assert [save.step for save in steps] == [3, 6, 5] and steps[0].line.ancestors == ()
    assert steps[0].run_id != steps[1].run_id


def test_a_start_on_another_node_is_another_run_and_does_not_evict_a_live_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = CheckpointConfig.from_mapping({"namespace": "ns", "shared": {"path": str(tmp_path)}})

    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"  # memory directories
    for directory in (here, elsewhere):
        directory.mkdir()

    def claim(ram_dir: Path, *, fresh: bool = False) -> Claim:
        run = run_id(config, ram_dir, fresh=fresh)
        return Claim(run_id=run, attempt=int(time.time()), nonce="n", user="u", host="h", job="", since_s=1.5e9)

    live, in_job = claim(here), run_id(config, here, "slurm-cluster-7")
    assert live.yields_to(claim(here)), "the lock of the memory directory has shown that the earlier start has ended"
    assert not live.yields_to(claim(elsewhere)), "a machine may have the same name"
    assert not live.yields_to(claim(here, fresh=True))
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename="elsewhere"))
    assert run_id(config, elsewhere, "slurm-cluster-7") == in_job


def _memory_directories(namespace: str, shared: list[Path], all_there: Any, results: Any) -> None:
    found = []
    for path in shared:
        all_there.wait(LIMIT_S)
        section = {"namespace": namespace, "shared": {"path": str(path)}}
        found.append(memory_directory(CheckpointConfig.from_mapping(section)))
    results.put(found)


def test_ranks_that_start_together_have_the_same_memory_directory(namespace: str, tmp_path: Path) -> None:
    """At the first start in a shared directory none of them finds a mark."""
    results, all_there = processes.Queue(), processes.Barrier(2)
    shared = [tmp_path / f"{number}" for number in range(20)]
    given = (namespace, shared, all_there, results)
    ranks = [processes.Process(target=_memory_directories, args=given) for _ in range(2)]
    for process in ranks:
        process.start()
    first, second = (results.get(timeout=LIMIT_S) for _ in ranks)
    assert first == second
    for process in ranks:
        process.join(LIMIT_S)


def test_several_nodes_without_a_launcher_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="several nodes need the launcher"):
        Checkpointer(namespace="ns")


@pytest.mark.parametrize(
    ("arguments", "env", "message"),
    [
        ({}, {}, r"Checkpointer.namespace: missing"),
        ({"namespace": "a/b"}, {}, r"Checkpointer.namespace"),
        ({"namespace": "ns", "every_steps": 0}, {}, r"Checkpointer.memory.every_steps: got 0"),
        ({"namespace": "ns"}, {"RANK": "x"}, r"RANK='x'"),
        ({"namespace": "ns"}, {"HOLDFAST_RUN_ID": "r"}, r"HOLDFAST_CHECKPOINT is not set"),
        ({"config": {"namespace": "ns"}, "every_steps": 3}, {}, r"put all into config"),
        ({"config": {"namespace": "ns", "redundancy": {"scheme": "xor", "parity": 2}}}, {}, r"parity: has no effect"),
    ],
)
def test_bad_arguments_are_refused(
    monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], env: dict[str, str], message: str
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=message):
        Checkpointer(**arguments)


JOB_SECTION: dict[str, Any] = {"namespace": "ns", "memory": {"every_steps": 5}, "shared": {"path": "/shared"}}


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A launcher's environment; no agent is there."""
    section = json.dumps(JOB_SECTION)
    for name, value in {
        "RUN_ID": "r", "ATTEMPT": "0", "NODE": "n0", "NODES": "n0", "RANKS_PER_NODE": "1", "RAM_DIR": str(tmp_path),
        "CHECKPOINT": section,
    }.items():  # fmt: skip
        monkeypatch.setenv(f"HOLDFAST_{name}", value)


@pytest.mark.usefixtures("launched")
@pytest.mark.parametrize(
    ("arguments", "every_steps"),
    [
        ({}, 5),
        ({"namespace": "ns"}, 5),
        ({"every_steps": 3, "shared": "/shared"}, 3),
        ({"config": JOB_SECTION | {"memory": {"every_steps": 7}}}, 7),
        ({"config": CheckpointConfig.from_mapping(JOB_SECTION)}, 5),
    ],
)
def test_an_explicit_cadence_beats_the_job_files(arguments: dict[str, Any], every_steps: int) -> None:
    config = Checkpointer(**arguments)._engine._config
    assert config == CheckpointConfig.from_mapping(JOB_SECTION | {"memory": {"every_steps": every_steps}})


@pytest.mark.usefixtures("launched")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"namespace": "other"}, r"namespace: got 'other', but the agents of this job were started with 'ns'"),
        ({"shared": "/elsewhere"}, r"shared.path: got '/elsewhere', but .* with '/shared'"),
        ({"config": {"s3": {"url": "s3://bucket/x"}}}, r"s3.url: got 's3://bucket/x', but .* with None"),
        ({"config": CheckpointConfig(namespace="ns")}, r"shared"),
        ({"config": {"redundancy": {"scheme": "none", "copies": 2}}}, r"copies: has no effect with scheme none"),
    ],
)
def test_an_argument_that_running_agents_cannot_follow_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Checkpointer(**arguments)


def test_from_env_without_a_launcher_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match="HOLDFAST_CHECKPOINT is not set"):
        Checkpointer.from_env({})
