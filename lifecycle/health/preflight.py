"""The checks of a runner before its node joins a job. They run in its own process and take milliseconds."""

from __future__ import annotations

import dataclasses
import resource
from pathlib import Path

from lifecycle.health.finding import Finding
from lifecycle.health.host import judge_memory, judge_open_files, memory_file_system, open_files


def preflight(memory: Path) -> list[Finding]:
    """Whether this process's node can hold checkpoints and run workers.

    Args:
        memory: the directory, on a memory file system, below which checkpoints will be held.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    findings = ((memory_file_system, judge_memory(memory)), (open_files, judge_open_files(limit)))
    return [dataclasses.replace(finding, check=check.name) for check, finding in findings]
