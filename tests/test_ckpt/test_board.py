"""The board: rows of workers, and the stop that all agree on without waiting for one another."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from ckpt.errors import CheckpointError
from ckpt.memory.board import Board
from ckpt.worker.boundaries import Cadence


def cadence(board: Board, local_rank: int = 0, **changes: float) -> Cadence:
    return Cadence(
        board, every_steps=[5, 7], rank=local_rank, local_rank=local_rank, attempt=3, gate_s=changes.get("gate_s", 30.0)
    )


def test_rows_show_the_workers_of_this_attempt(tmp_path: Path) -> None:
    reader = Board.create(tmp_path, attempt=2)
    assert reader.rows() == []
    agent = Board.create(tmp_path, attempt=3)
    worker = cadence(Board.open(tmp_path), local_rank=1)
    worker.should_save(41)
    worker.should_stop(41)
    worker.should_save(42)
    (row,) = reader.rows()
    assert (row.local_rank, row.rank, row.attempt, row.boundary, row.step, row.pid) == (1, 1, 3, 2, 42, os.getpid())
    assert agent.boundary() == 2
    Board.create(tmp_path, attempt=4)
    assert reader.rows() == [] and reader.attempt == 4


def test_the_board_is_private_and_of_fixed_size(tmp_path: Path) -> None:
    Board.create(tmp_path, attempt=0).close()
    status = (tmp_path / "board").stat()
    assert (status.st_size, status.st_mode & 0o777) == (4096 + 64 * 64, 0o600)


@pytest.mark.parametrize("content", [b"short", b"x" * (4096 + 64 * 64)])
def test_a_file_that_is_no_board_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "board").write_bytes(content)
    with pytest.raises(CheckpointError, match="remove the file"):
        Board.open(tmp_path)


def test_a_symlink_in_place_of_the_board_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").touch()
    (tmp_path / "board").symlink_to("elsewhere")
    with pytest.raises(OSError):
        Board.open(tmp_path)


@pytest.mark.parametrize("local_rank", [-1, 64])
def test_a_local_rank_without_a_row_is_an_error(tmp_path: Path, local_rank: int) -> None:
    with pytest.raises(CheckpointError, match="local rank"):
        Board.create(tmp_path, attempt=0).write_row(local_rank, rank=0, attempt=0, boundary=1, step=1)


def test_should_save_follows_every_configured_cadence(tmp_path: Path) -> None:
    Board.create(tmp_path, attempt=3)
    worker = cadence(Board.open(tmp_path))
    assert [step for step in range(1, 16) if worker.should_save(step)] == [5, 7, 10, 14, 15]


def test_should_stop_alone_counts_boundaries(tmp_path: Path) -> None:
    agent = Board.create(tmp_path, attempt=3)
    worker = cadence(Board.open(tmp_path))
    assert [worker.should_stop(step) for step in range(3)] == [False] * 3
    agent.set_stop(5)
    assert [worker.should_stop(step) for step in range(3, 6)] == [False, True, True]


def test_further_calls_for_a_step_change_nothing(tmp_path: Path) -> None:
    agent = Board.create(tmp_path, attempt=3)
    worker = cadence(Board.open(tmp_path))
    for step in (0, 1, 2):
        assert not any(worker.should_stop(step) for _ in range(3))
        assert [worker.should_save(step) for _ in range(2)] == [step == 0] * 2
        assert agent.boundary() == step + 1
    agent.set_stop(4)
    assert not worker.should_save(2) and not worker.should_stop(2)
    assert worker.should_save(3) and worker.should_stop(3) and worker.should_save(3)


def test_a_caller_that_knows_no_step_shares_the_boundary_of_a_call_that_does(tmp_path: Path) -> None:
    agent = Board.create(tmp_path, attempt=3)
    worker = cadence(Board.open(tmp_path))
    for boundary in (1, 2):
        assert not worker.should_stop_here() and agent.boundary() == boundary
    for step in (1, 2):
        assert not worker.should_save(step) and not worker.should_stop_here()
        assert agent.boundary() == 2 + step
    assert [row.step for row in agent.rows()] == [2]


def test_the_stop_of_an_earlier_attempt_is_not_obeyed(tmp_path: Path) -> None:
    Board.create(tmp_path, attempt=2).set_stop(1)
    assert not cadence(Board.open(tmp_path)).should_stop(1)


def test_a_worker_goes_on_when_nobody_decides(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Board.create(tmp_path, attempt=3).set_gate(1)
    worker = cadence(Board.open(tmp_path), gate_s=0.02)
    assert not worker.should_save(1)
    assert "have not decided within" in caplog.text
    assert not worker.should_save(2)  # the same gate halts nobody twice
    assert len(caplog.records) == 1


@pytest.mark.parametrize("round_", range(3))
def test_workers_in_lockstep_all_stop_at_the_same_boundary(tmp_path: Path, round_: int) -> None:
    """Workers meet in a barrier each step, as in a collective: a stop must never leave some behind in it."""
    workers = 4
    agent = Board.create(tmp_path, attempt=3)
    barrier = threading.Barrier(workers)
    stopped: dict[int, int] = {}

    def train(local_rank: int) -> None:
        worker = cadence(Board.open(tmp_path), local_rank=local_rank)
        for step in range(1, 100_000):
            barrier.wait(timeout=20)
            saved = worker.should_save(step)
            if worker.should_stop(step):
                assert saved
                stopped[local_rank] = step
                return

    threads = [threading.Thread(target=train, args=(i,)) for i in range(workers)]
    for thread in threads:
        thread.start()
    while agent.boundary() < 20:
        pass
    agent.set_gate(1)
    agent.set_stop(1 + agent.boundary())
    for thread in threads:
        thread.join(timeout=20)
    assert len(stopped) == workers and len(set(stopped.values())) == 1


def test_a_section_is_told_until_it_ends_whatever_boundaries_come_meanwhile(tmp_path: Path) -> None:
    reader = Board.create(tmp_path, attempt=3)
    worker = cadence(Board.open(tmp_path))
    with worker.section("evaluation"):
        assert reader.rows() == [], "before the first boundary there is no row"
        worker.should_save(1)
        assert [row.section for row in reader.rows()] == ["evaluation"]
        with worker.section("checkpoint"):
            assert [row.section for row in reader.rows()] == ["checkpoint"]
        assert [row.section for row in reader.rows()] == ["evaluation"]
    assert [row.section for row in reader.rows()] == ["step"]


def test_worker_that_has_left_is_known_until_it_comes_back(tmp_path: Path) -> None:
    board = Board.create(tmp_path, attempt=0)
    board.write_row(1, rank=1, attempt=0, boundary=2, step=2)
    board.leave(1)
    assert [row.left for row in Board.open(tmp_path).rows()] == [True]
    board.write_row(1, rank=1, attempt=0, boundary=3, step=3)
    assert [row.left for row in board.rows()] == [False]


def test_a_stop_is_agreed_where_some_workers_have_turned_to_the_new_board_and_some_have_not(tmp_path: Path) -> None:
    """The agent has made the board again after somebody removed it."""
    agent = Board.create(tmp_path, attempt=3)
    late, early = (cadence(Board.open(tmp_path), local_rank=local_rank) for local_rank in (0, 1))
    runner = Board.open(tmp_path)
    for step in (1, 2, 3):
        late.should_save(step)
    (tmp_path / "board").unlink()
    assert not agent.is_there and runner.is_there is False
    late.should_save(4)  # as long as there is no other, the board that was removed still counts
    agent.make_again()
    assert agent.is_there and agent.boundary() == 4
    early.should_save(1)
    agent.set_gate(1)
    assert (agent.boundary(), late._board.gate, early._board.gate) == (4, 1, 1)
    agent.set_stop(5)
    assert late._board.gate == early._board.gate == 0
    late.should_save(5)
    runner.follow()
    assert late.stopping and {row.local_rank: row.boundary for row in runner.rows()} == {0: 5, 1: 1}
