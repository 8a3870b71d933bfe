"""`holdfast node env` as a user calls it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

LOGS = Path(__file__).with_name("nccl_logs")


def node_env(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "FI_", "RDMAV_"))}
    command = [sys.executable, "-m", "launcher", "node", "env", *arguments]
    return subprocess.run(command, env=clean | env, capture_output=True, text=True, check=False)


def test_what_does_harm_is_named_with_its_reason_and_fails() -> None:
    done = node_env(RDMAV_FORK_SAFE="1", FI_EFA_FORK_SAFE="1")
    lines = done.stdout.splitlines()
    assert done.returncode == 1
    assert any(line.startswith("HARMFUL: RDMAV_FORK_SAFE=1: ") for line in lines)
    assert any(line.startswith("STALE: FI_EFA_FORK_SAFE=1: ") for line in lines)


def test_what_is_merely_stale_does_not_fail_and_a_log_fails_only_where_the_fabric_is_required() -> None:
    log = str(LOGS / "socket_no_provider.log")
    told = node_env("--json", log, FI_EFA_FORK_SAFE="1")
    facts = json.loads(told.stdout)
    assert told.returncode == 0 and facts["logs"][0]["network"] == "Socket" and "expected" in facts["logs"][0]["wrong"]
    assert [remark["severity"] for remark in facts["remarks"]] == ["stale"]
    assert node_env("--fabric", "require", "--nccl-log", log).returncode == 1
    assert node_env("--fabric", "require", str(LOGS / "p5_efa_direct.log")).returncode == 0


def test_a_wrong_request_is_one_line() -> None:
    done = node_env("--fabric", "always")
    assert done.returncode == 2 and "got 'always', expected one of require, prefer, any" in done.stderr
