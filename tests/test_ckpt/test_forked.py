"""Processes that a training script forks, such as a DataLoader's workers, have no part in its checkpoints."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset
from trainer_kit import Node, settle, solo_namespace

from ckpt import Checkpointer, CheckpointError


class FromTheFork(IterableDataset[Any]):
    """What a forked worker finds, in place of samples."""

    def __init__(self, look: Any) -> None:
        self._look = look

    def __iter__(self) -> Iterator[Any]:
        yield self._look()


def in_two_workers(look: Any) -> list[Any]:
    """What `look()` returns in each of two workers."""
    loader = DataLoader(
        FromTheFork(look), num_workers=2, batch_size=None, multiprocessing_context="fork", prefetch_factor=1
    )
    return list(loader)


def open_files() -> set[str]:
    """What this process has open, sockets and pipes with their inode numbers; maps that keep a descriptor too."""
    links = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            links.add(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:  # that of the listing
            continue
    return links


@pytest.fixture
def training(tmp_path: Path) -> Iterator[tuple[Node, Checkpointer]]:
    """A worker that has saved a step, with all that it then holds open."""
    node = Node(tmp_path)
    ckpt = node.start()
    try:
        state = {"x": np.zeros(1000)}
        ckpt.load(state)
        assert ckpt.should_save(1) and not ckpt.should_stop(1)
        ckpt.save(1, state)
        settle(ckpt)
        yield node, ckpt
    finally:
        ckpt.close()
        node.stop()


def test_a_data_loaders_workers_hold_nothing_of_the_node_open(training: tuple[Node, Checkpointer]) -> None:
    node, ckpt = training
    ours = {f"socket:[{os.fstat(ckpt._engine.connect()._link.agent.fileno()).st_ino}]"}
    ours |= {link for link in open_files() if link.startswith(str(node.ram_dir))}
    assert {Path(link).name for link in ours} >= {"board", "own-0-0.data"}
    for held in in_two_workers(open_files):
        assert not held & ours
    assert ours <= open_files()


def test_a_forked_process_neither_saves_nor_takes_leave_for_its_parent(training: tuple[Node, Checkpointer]) -> None:
    _, ckpt = training

    def try_all() -> list[str]:
        refused = []
        for call in (
            lambda: ckpt.save(2, {"x": torch.ones(3)}),
            lambda: ckpt.load({"x": torch.ones(3)}),
            lambda: ckpt.should_save(2),
            lambda: ckpt.should_stop(2),
        ):
            with pytest.raises(CheckpointError) as error:
                call()
            refused.append(str(error.value))
        ckpt.close()
        return refused

    for refused in in_two_workers(try_all):
        assert len(refused) == 4 and all("was forked from rank 0" in why for why in refused)
    assert ckpt.should_save(2)
    ckpt.save(2, {"x": np.ones(1000)})
    settle(ckpt)
    assert ckpt.failed_saves == 0


def test_a_forked_process_does_not_keep_a_script_without_a_launcher_from_starting_again() -> None:
    with solo_namespace() as namespace:
        ckpt = Checkpointer(namespace=namespace)
        ckpt.load({"x": np.zeros(3)})
        held = in_two_workers(open_files)
        ckpt.close()
    assert not any(link.startswith("/dev/shm/holdfast-") for links in held for link in links)
