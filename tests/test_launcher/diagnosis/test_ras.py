"""What NCCL's RAS says of a hang, in answers as its guide and public reports show them."""

from __future__ import annotations

import pytest
from test_hang_verdict import GLOO, LOCKED, entered, named, rank

from launcher.diagnosis.hang_verdict import judge
from launcher.diagnosis.ras import RasProcess, processes

# docs.nvidia.com/deeplearning/nccl: troubleshooting/ras, 2.24
STOPPED = """\
Communicators... (2.05s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4       7-8        32        32   RUNNING  INCOMPLETE

Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 3487984 on node 172.16.64.213 managing GPU 5

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 21

Warnings
========

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data
"""
BEHIND = """\
#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  26 ranks have launched up to operation 6650
  6 ranks have launched up to operation 6649
  Rank 0 -- GPU 0 managed by process 483072 on node 172.16.64.210
  Rank 2 -- GPU 2 managed by process 483074 on node 172.16.64.210
"""
# NVIDIA/nccl: the RAS example of 2.30
ALONE = """\
Warnings
========

#0-0 (78db921d1c117b4a) MISMATCH
  Communicator ranks have different AllReduce operation counts
  7 ranks have launched up to operation 64
  Rank 7 has launched up to operation 60 -- GPU 3 managed by process 1650386 on node node1
"""
# NVIDIA/nccl#1911, 2.26: the ranks that are ahead are listed, those behind are not
AHEAD = """\
#0-0 (fa93daea854b060b) MISMATCH
  Communicator ranks have different AllGather operation counts
  30 ranks have launched up to operation 640
  2 ranks have launched up to operation 641
  Rank 12 -- GPU 4 managed by process 323032 on node 10.137.190.124
  Rank 13 -- GPU 5 managed by process 323033 on node 10.137.190.124
"""
TEARDOWN = """\
#0-0 (9e17999afaa87dbb) MISMATCH
  Communicator ranks have different status
  26 ranks have status UNKNOWN
  2 ranks have status FINALIZE
  Rank 4 -- GPU 4 managed by process 507289 on node 172.16.64.210
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (STOPPED, {3487984: "RAS gets no data from it"}),
        (STOPPED.replace("INCOMPLETE\n  Missing communicator data from 1 job", "DEAD\n  1 job"),
         {3487984: "RAS does not reach it any more"}),
        (BEHIND, dict.fromkeys(
            (483072, 483074), "it has launched 6649 operations (collective) of communicator #0-0, others 6650")),
        (ALONE, {1650386: "it has launched 60 operations (AllReduce) of communicator #0-0, others 64"}),
        (ALONE.replace("launched up to operation 60", "not launched any operations"),
         {1650386: "it has launched 0 operations (AllReduce) of communicator #0-0, others 64"}),
        (AHEAD, {}), (TEARDOWN, {}), ("", {}), ("ERROR: Unknown command", {}),
    ],
)  # fmt: skip
def test_processes_that_are_missing_or_behind_are_read(text: str, found: dict[int, str]) -> None:
    assert {process.pid: process.says for process in processes(text)} == found


def test_a_process_that_is_missing_and_behind_is_missing() -> None:
    both = ALONE + STOPPED.replace("3487984 on node 172.16.64.213", "1650386 on node node1")
    (process,) = processes(both)
    assert (process.node, process.says) == ("node1", "RAS gets no data from it")


SAYS = "it has launched 60 operations (AllReduce) of communicator #0-0, others 64"
RAS = [RasProcess(pid=14, node="10.0.0.4", says=SAYS)]


def test_what_ras_says_of_the_rank_at_fault_is_one_more_proof() -> None:
    waiting = [rank(each, *GLOO, entered=(entered(64),), pid=10 + each) for each in (0, 1, 2)]
    verdict = judge([*waiting, rank(3, *LOCKED, entered=(entered(60),), pid=14)], ras=RAS)
    assert named(verdict) == [3] and verdict.text.endswith(f"; NCCL says of rank 3: {SAYS}")
    assert "NCCL" not in judge([*waiting, rank(3, *LOCKED, entered=(entered(60),), pid=15)], ras=RAS).text


def test_ras_decides_where_the_stacks_tell_nothing() -> None:
    alike = [rank(each, *GLOO, pid=11 + each) for each in range(4)]
    assert named(judge(alike)) == []
    verdict = judge(alike, ras=RAS)
    assert named(verdict) == [3] and verdict.text.startswith(f"rank 3 on node1: {SAYS}")


def test_ras_names_nobody_where_two_ranks_have_the_pid_or_several_are_behind() -> None:
    twins = [rank(each, *GLOO, pid=14) for each in range(4)]
    assert named(judge(twins, ras=RAS)) == []
    alike = [rank(each, *GLOO, pid=11 + each) for each in range(4)]
    assert named(judge(alike, ras=[*RAS, RasProcess(pid=13, node="10.0.0.4", says=SAYS)])) == []
