"""What the kernel said of GPUs and EFA while a job ran, kept against the node: `/var/lib/holdfast/incidents.jsonl`."""

from __future__ import annotations

import json
import logging
import os
import re
import time
from pathlib import Path

from slurm.hooks.hook import HookJob

log = logging.getLogger("holdfast.hooks")

_KMSG = Path("/dev/kmsg")
_MAX_RECORDS = 100_000
_MAX_INCIDENTS = 50  # of one job: a broken GPU says the same a thousand times
_SPEAKS_OF = re.compile(
    r"NVRM: Xid \(PCI:[0-9a-fA-F:.]+\): \d+"
    r"|SXid \(PCI:[0-9a-fA-F:.]+\): \d+"
    r"|\befa [0-9a-f:.]+: .*(?:[Ff]ail|[Ee]rror|[Tt]imeout|reset)"
)


def record_incidents(path: Path, node: str, job: HookJob, since_s: float, kmsg: Path = _KMSG) -> list[str]:
    """Appends what the kernel said since a job began.

    Args:
        path: the file, one JSON object a line: time_s, node, job, uid, what.
        node: this node.
        job: whose time it was.
        since_s: when the job began, seconds since boot.
        kmsg: the kernel's log; records as Documentation/ABI/testing/dev-kmsg has them.

    Returns:
        The messages.
    """
    found = [text for at_s, text in kernel_messages(kmsg) if at_s >= since_s and _SPEAKS_OF.search(text)]
    found = list(dict.fromkeys(found))[:_MAX_INCIDENTS]
    if found:
        now_s = round(time.time(), 3)
        rows = [
            {"time_s": now_s, "node": node, "job": job.job_id, "uid": job.uid, "what": what[:500]} for what in found
        ]
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            os.write(descriptor, "".join(json.dumps(row) + "\n" for row in rows).encode())
        finally:
            os.close(descriptor)
        log.warning("job %d: the kernel said %s", job.job_id, "; ".join(found)[:1000])
    return found


def kernel_messages(kmsg: Path = _KMSG) -> list[tuple[float, str]]:
    """(seconds since boot, text) of every message the kernel still has; empty where it may not be read."""
    try:
        descriptor = os.open(kmsg, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        log.info("%s cannot be read (%s): what the kernel says is not recorded", kmsg, error.strerror)
        return []
    messages = []
    try:
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            for _ in range(_MAX_RECORDS):
                try:
                    record = file.read(1 << 14)
                except BrokenPipeError:  # overwritten while we read: the next read goes on after the gap
                    continue
                if not record:  # None: no more for now
                    break
                for line in record.decode(errors="replace").splitlines():
                    head, semicolon, text = line.partition(";")
                    parts = head.split(",")
                    if semicolon and len(parts) >= 3 and parts[2].isdigit():
                        messages.append((int(parts[2]) / 1e6, text))
    except OSError as error:
        log.info("%s: %s", kmsg, error.strerror)
    return messages
