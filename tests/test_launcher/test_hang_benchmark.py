"""The benchmark of hangs in its short form: one of each kind, in processes that really hang."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "hang_verdicts.py"
WAYS = 13


def test_the_rank_at_fault_is_named_in_each_kind_of_hang() -> None:
    argv = [sys.executable, str(BENCHMARK), "--count", str(WAYS)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=BENCHMARK.parents[1])
    told = f"{done.stdout}{done.stderr}"
    assert f"| all | {WAYS} | {WAYS} |" in done.stdout, told
    assert done.stdout.count(" | 1 | 1 |") == WAYS, "each kind was injected once"
    places = ("in its own code", "data loader", "a lock", "holds the GIL", "state T", "teardown")
    for words in (*places, "and has not entered", "the others entered"):
        assert words in done.stdout, told
