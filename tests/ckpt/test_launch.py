"""What it takes to start an agent."""

from __future__ import annotations

import subprocess
import sys


def test_an_agent_starts_without_libraries_that_it_may_never_need() -> None:
    look = "import sys, ckpt.agent.__main__; print({'boto3', 'numpy', 'torch', 'yaml'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True).stdout == "set()\n"
