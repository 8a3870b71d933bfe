"""The cause of an attempt's end, told from its consequences."""

from __future__ import annotations

import signal

import pytest

from launcher.core.faults import FaultKind, root_cause, signature
from launcher.diagnosis import WorkerFailure

TRACEBACK = """Traceback (most recent call last):
  File "/job/train.py", line 12, in <module>
    main()
  File "/job/train.py", line 8, in main
    raise ValueError("bad batch 17")
ValueError: bad batch 17
"""


def failure(
    rank: int,
    time_s: float,
    exit_code: int = 1,
    error: str | None = None,
    trace: str | None = None,
    words: str | None = None,
) -> WorkerFailure:
    ended = {"rank": rank, "exit_code": exit_code, "time": time_s}
    said = {"error": error, "traceback": trace, "last_words": words, "log": [], "rule": None, "action": None}
    return WorkerFailure.from_report(f"n{rank}", ended | said)


def test_exception_of_the_script_is_a_user_error_with_its_traceback() -> None:
    fault = root_cause([failure(3, 1.0, error="ValueError: bad batch 17", trace=TRACEBACK)])
    assert (fault.kind, fault.node, fault.rank, fault.traceback) == (FaultKind.USER_ERROR, "n3", 3, TRACEBACK)
    assert fault.reason == "rank 3 on n3 exited with code 1: ValueError: bad batch 17"


@pytest.mark.parametrize(
    ("exit_code", "words"),
    [(7, "exited with code 7"), (-signal.SIGKILL, "was ended by SIGKILL"), (-200, "was ended by signal 200")],
)
def test_exit_without_exception_is_a_process_fault(exit_code: int, words: str) -> None:
    fault = root_cause([failure(0, 1.0, exit_code)])
    assert (fault.kind, fault.reason) == (FaultKind.PROCESS_EXIT, f"rank 0 on n0 {words}")


def test_a_script_that_ends_itself_with_words_is_a_user_error_with_them() -> None:
    fault = root_cause([failure(0, 1.0, 3, words="loading 4 files\n  no such file: data/7.bin")])
    assert (fault.kind, fault.reason) == (
        FaultKind.USER_ERROR,
        "rank 0 on n0 exited with code 3: no such file: data/7.bin",
    )
    assert fault.traceback == "loading 4 files\n  no such file: data/7.bin"


@pytest.mark.parametrize(
    ("exit_code", "words"), [(-signal.SIGSEGV, "loading"), (1, "DistStoreError: Socket Timeout"), (1, None)]
)
def test_words_of_a_script_that_something_else_ended_are_no_user_error(exit_code: int, words: str | None) -> None:
    fault = root_cause([failure(0, 1.0, exit_code, words=words)])
    assert (fault.kind, fault.traceback) == (FaultKind.PROCESS_EXIT, words)


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
        "RuntimeError: CUDA error: unspecified launch failure",
    ],
)
def test_loss_of_a_peer_is_a_consequence_even_if_reported_first(consequence: str) -> None:
    killed = failure(5, 2.0, -signal.SIGKILL)
    assert root_cause([failure(0, 1.0, error=consequence, trace="x"), killed]).rank == 5
    alone = root_cause([failure(0, 1.0, error=consequence, trace="x")])
    assert alone.kind == FaultKind.PROCESS_EXIT


def test_abort_by_a_watchdog_is_a_consequence() -> None:
    assert root_cause([failure(0, 1.0, -signal.SIGABRT), failure(1, 2.0, error="ValueError: x", trace="x")]).rank == 1


def test_same_error_has_the_same_signature_whatever_its_numbers() -> None:
    assert signature(TRACEBACK) == signature(TRACEBACK.replace("17", "4711").replace("\n    raise", "\n    raise  "))


def test_the_same_last_words_have_the_same_signature_whatever_their_numbers() -> None:
    assert signature("loading 4 files\nno file 7") == signature("loading 5 files\nno file 8\n")
    assert signature("loading 4 files\nno file 7") != signature("resumed at 10\nno file 7")


@pytest.mark.parametrize("change", [("line 8", "line 9"), ("ValueError", "KeyError"), ("train.py", "model.py")])
def test_another_error_has_another_signature(change: tuple[str, str]) -> None:
    assert signature(TRACEBACK) != signature(TRACEBACK.replace(*change))
