"""The cause of an attempt's end, told from its consequences."""

from __future__ import annotations

import signal

import pytest

from launcher.supervisor.faults import PROCESS_EXIT, USER_ERROR, WorkerFailure, root_cause, signature

TRACEBACK = """Traceback (most recent call last):
  File "/job/train.py", line 12, in <module>
    main()
  File "/job/train.py", line 8, in main
    raise ValueError("bad batch 17")
ValueError: bad batch 17
"""


def failure(
    rank: int, time_s: float, exit_code: int = 1, error: str | None = None, trace: str | None = None
) -> WorkerFailure:
    return WorkerFailure(node=f"n{rank}", rank=rank, exit_code=exit_code, time_s=time_s, error=error, traceback=trace)


def test_exception_of_the_script_is_a_user_error_with_its_traceback() -> None:
    fault = root_cause([failure(3, 1.0, error="ValueError: bad batch 17", trace=TRACEBACK)])
    assert (fault.kind, fault.node, fault.rank, fault.traceback) == (USER_ERROR, "n3", 3, TRACEBACK)
    assert fault.reason == "rank 3 on n3 exited with code 1: ValueError: bad batch 17"


@pytest.mark.parametrize(
    ("exit_code", "words"),
    [(7, "exited with code 7"), (-signal.SIGKILL, "was ended by SIGKILL"), (-200, "was ended by signal 200")],
)
def test_exit_without_exception_is_a_process_fault(exit_code: int, words: str) -> None:
    fault = root_cause([failure(0, 1.0, exit_code)])
    assert (fault.kind, fault.reason) == (PROCESS_EXIT, f"rank 0 on n0 {words}")


def test_earliest_failure_is_the_cause() -> None:
    assert root_cause([failure(0, 2.0), failure(1, 1.0), failure(2, 3.0)]).rank == 1


@pytest.mark.parametrize(
    "consequence",
    [
        "RuntimeError: [../gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.1]:39117",
        "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error",
        "torch.distributed.DistNetworkError: Connection reset by peer",
        "ckpt.errors.AgentError: agent closed the connection",
        "BrokenPipeError: [Errno 32] Broken pipe",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    ],
)
def test_loss_of_a_peer_is_a_consequence_even_if_reported_first(consequence: str) -> None:
    killed = failure(5, 2.0, -signal.SIGKILL)
    assert root_cause([failure(0, 1.0, error=consequence, trace="x"), killed]).rank == 5
    alone = root_cause([failure(0, 1.0, error=consequence, trace="x")])
    assert alone.kind == PROCESS_EXIT


def test_abort_by_a_watchdog_is_a_consequence() -> None:
    assert root_cause([failure(0, 1.0, -signal.SIGABRT), failure(1, 2.0, error="ValueError: x", trace="x")]).rank == 1


def test_same_error_has_the_same_signature_whatever_its_numbers() -> None:
    assert signature(TRACEBACK) == signature(TRACEBACK.replace("17", "4711").replace("\n    raise", "\n    raise  "))


@pytest.mark.parametrize("change", [("line 8", "line 9"), ("ValueError", "KeyError"), ("train.py", "model.py")])
def test_another_error_has_another_signature(change: tuple[str, str]) -> None:
    assert signature(TRACEBACK) != signature(TRACEBACK.replace(*change))
