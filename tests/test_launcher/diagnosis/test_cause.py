"""One cause for an attempt whose ranks report different ends."""

from __future__ import annotations

import signal

import pytest

from launcher.diagnosis import Domain, FaultClass, NodeEvidence, WorkerFailure, find_cause
from launcher.diagnosis.match import telling

PEER = "RuntimeError: [gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.1]:1"
WATCHDOG = "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE)"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


def failed(rank: int, words: str | None, *, at: float = 1e9, code: int = 1, node: str | None = None) -> WorkerFailure:
    return WorkerFailure(node=node or f"n{rank}", rank=rank, exit_code=code, time_s=at, last_words=words)


@pytest.mark.parametrize("consequence", [PEER, WATCHDOG, "BrokenPipeError: [Errno 32] Broken pipe"])
def test_what_other_ranks_report_is_folded_under_the_cause_even_if_it_came_first(consequence: str) -> None:
    cause = find_cause([failed(0, consequence), failed(1, OOM, at=1e9 + 1), failed(2, consequence)])
    assert (cause.failure.rank, cause.diagnosis.fault_class) == (1, FaultClass.GPU_MEMORY)
    assert (cause.diagnosis.proof, cause.diagnosis.consequences, cause.is_secondary) == (OOM, 2, False)


def test_a_cause_of_another_class_is_no_consequence() -> None:
    full = "OSError: [Errno 28] No space left on device"
    diagnosis = find_cause([failed(0, OOM), failed(1, full, at=1e9 + 1), failed(2, PEER), failed(3, full)]).diagnosis
    assert diagnosis.others == (f"storage_full on rank 1, n1: {full}",)
    assert diagnosis.consequences == 1


def test_consequences_alone_are_told_as_what_they_are() -> None:
    cause = find_cause([failed(0, PEER), failed(1, PEER)])
    assert (cause.diagnosis.fault_class, cause.is_secondary, cause.is_users) == (FaultClass.PEER, True, False)


def test_of_two_causes_the_earlier_counts() -> None:
    cause = find_cause([failed(0, "ValueError: b", at=1e9 + 1), failed(1, "ValueError: a")])
    assert (cause.failure.rank, cause.diagnosis.domain, cause.is_users) == (1, Domain.USER, True)


@pytest.mark.parametrize("code", [-signal.SIGTERM, 128 + signal.SIGTERM])
def test_a_rank_that_was_asked_to_end_is_not_the_cause(code: int) -> None:
    cause = find_cause([failed(0, "", code=code), failed(1, "KeyError: 'lr'", at=1e9 + 1)])
    assert cause.failure.rank == 1


def test_a_silent_abort_follows_from_another_rank_and_an_abort_with_a_cause_does_not() -> None:
    ecc = "what():  CUDA error: uncorrectable ECC error encountered"
    assert find_cause([failed(0, None, code=-6), failed(1, "KeyError: 1", at=1e9 + 1)]).failure.rank == 1
    cause = find_cause([failed(0, PEER), failed(1, ecc, code=-6, at=1e9 + 1)])
    assert (cause.failure.rank, cause.diagnosis.fault_class, cause.diagnosis.domain) == (1, FaultClass.GPU, Domain.NODE)


def test_a_killed_rank_is_told_by_what_its_node_saw() -> None:
    failures = [failed(0, PEER), failed(1, None, code=-9)]
    assert find_cause(failures).diagnosis.fault_class is FaultClass.KILLED
    kills = find_cause(failures, {"n1": NodeEvidence(oom_kills=1)})
    assert (kills.failure.rank, kills.diagnosis.fault_class) == (1, FaultClass.HOST_MEMORY)
    xid = "NVRM: Xid (PCI:0000:3b:00): 79, pid=12, GPU has fallen off the bus."
    gpu = find_cause(failures, {"n1": NodeEvidence(kernel=(xid,))})
    assert (gpu.failure.node, gpu.diagnosis.fault_class, gpu.diagnosis.proof) == ("n1", FaultClass.GPU, xid)


def test_an_xid_that_a_program_can_cause_does_not_blame_the_gpu() -> None:
    xid = "NVRM: Xid (PCI:0000:3b:00): 43, pid=12, name=python3, Ch 00000008"
    cause = find_cause([failed(0, "IndexError: index out of range in self")], {"n0": NodeEvidence(kernel=(xid,))})
    assert cause.diagnosis.fault_class is FaultClass.MISMATCH


def test_a_cause_names_all_nodes_that_failed_alike() -> None:
    missing = "ModuleNotFoundError: No module named 'einops'"
    cause = find_cause([failed(0, missing), failed(1, missing), failed(2, missing, node="n1"), failed(3, PEER)])
    assert (cause.diagnosis.nodes, cause.diagnosis.is_certain) == (frozenset({"n0", "n1"}), True)


@pytest.mark.parametrize(("code", "found"), [
    (-signal.SIGSEGV, FaultClass.CRASH),
    (128 + signal.SIGSEGV, FaultClass.CRASH),
    (-signal.SIGKILL, FaultClass.KILLED),
    (137, FaultClass.KILLED),
    (3, FaultClass.UNKNOWN),
])  # fmt: skip
def test_an_exit_code_alone_tells_the_signal(code: int, found: FaultClass) -> None:
    cause = find_cause([failed(0, None, code=code)])
    assert cause.diagnosis.fault_class is found
    assert bool(cause.diagnosis.proof) is (found is not FaultClass.UNKNOWN)


def test_of_a_log_the_last_lines_tell_and_the_frames_of_a_stack_do_not_count() -> None:
    frames = [f"frame #{number}: c10::Error::Error + 0x57" for number in range(60)]
    steps = [f"step {number}: loss 2.3" for number in range(30)]
    assert telling(["NCCL WARN old: No route to host", *["step"] * 100], 8) == []
    assert telling([*steps, f"  what():  {OOM}", *frames, '  File "train.py", line 7, in <module>'], 8) == [
        f"what():  {OOM}"
    ]
