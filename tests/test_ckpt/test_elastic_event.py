"""HyperPod's free function sees the stop that the agents have agreed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from trainer_kit import Node

from ckpt import Monitor, elastic_event, sagemaker
from ckpt.elastic_event import elastic_event_detected
from ckpt.errors import ConfigError
from ckpt.sagemaker import SageMakerCheckpointConfig, SageMakerTieredStorageReader, SageMakerTieredStorageWriter
from ckpt.tiers.posix import SharedTier


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path, memory={"every_steps": 1000, "keep": 2}, shared={"path": str(tmp_path / "shared")})
    yield node
    node.stop()


def environment(node: Node) -> dict[str, str]:
    """What the launcher sets for this node's worker."""
    return {
        "HOLDFAST_RUN_ID": "run", "HOLDFAST_ATTEMPT": str(node.attempt), "HOLDFAST_NODE": "n0", "HOLDFAST_NODES": "n0",
        "HOLDFAST_RANKS_PER_NODE": "1", "HOLDFAST_RAM_DIR": str(node.ram_dir),
        "HOLDFAST_CHECKPOINT": json.dumps(node.section),
    }  # fmt: skip


def test_it_is_the_decision_of_the_checkpointer_that_the_script_has(node: Node) -> None:
    with node.start() as ckpt:
        assert not elastic_event_detected(environment(node)) and elastic_event.opened() is None
        with Monitor.connect(node.ram_dir, node.attempt, timeout_s=20) as monitor:
            monitor.stop()
            while not elastic_event_detected(environment(node)):
                pass
        assert ckpt.should_stop(1)
    assert elastic_event.known() is None


def test_a_hyperpod_script_without_a_checkpointer_stops_and_its_last_save_is_flushed(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.start().close()  # the agent
    for name, value in environment(node).items():
        monkeypatch.setenv(name, value)
    assert not elastic_event_detected()
    with Monitor.connect(node.ram_dir, node.attempt, timeout_s=20) as monitor:
        monitor.stop()
        step = 1
        while not elastic_event_detected():
            step += 1
    writer = SageMakerTieredStorageWriter(SageMakerCheckpointConfig(namespace="ns", world_size=1), step)
    dcp.save({"w": torch.ones(3)}, storage_writer=writer)
    opened = elastic_event.opened()
    assert opened is not None
    opened.close()
    assert [save.step for save in SharedTier(node.shared, "ns").steps()] == [step]
    assert elastic_event.opened() is None


def test_a_hyperpod_script_has_one_namespace_which_is_the_jobs(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.start().close()  # the agent
    for name, value in environment(node).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sagemaker, "_open", {})
    best = SageMakerCheckpointConfig(namespace="best", world_size=1, save_to_s3=True)
    dcp.save({"w": torch.ones(3)}, storage_writer=SageMakerTieredStorageWriter(best, 1))
    with pytest.raises(ConfigError, match=r"namespace: got 'last', but this process uses 'best'"):
        SageMakerTieredStorageReader(SageMakerCheckpointConfig(namespace="last", world_size=1))
    sagemaker._close_all()
    assert [save.step for save in SharedTier(node.shared, "ns").steps()] == [1]


def test_without_agents_nothing_is_detected() -> None:
    assert not elastic_event_detected({})
    assert not elastic_event_detected({"HOLDFAST_RUN_ID": "run"})  # a job without a `checkpoint` section
