"""Records kernel messages about GPUs and EFA during a job in `/var/lib/holdfast/incidents.jsonl`."""

from __future__ import annotations

import os
import time

from slurm.hooks.hook import HookJob
from slurm.hooks.log import log

_KMSG = "/dev/kmsg"
_MAX_RECORDS = 100_000
_MAX_INCIDENTS = 50  # of one job; a broken GPU repeats its message thousands of times
_MAX_RECORD_BYTES = 8192  # CONSOLE_EXT_LOG_MAX, and PRINTK_MESSAGE_MAX since: no record is longer
_WORDS = (b"NVRM: ", b"SXid (PCI:", b"efa ")  # every match of _SPEAKS_OF contains one of them

# The driver's messages, besides Xids, about a GPU that it has lost or cannot use. An Xid's line has the name of a
# process, so it is left to its number. A record with several lines is one line here, with \x0a in it.
LOST_GPU = r"\s*NVRM: (?!Xid ).*?([Ff]allen off the bus|RmInitAdapter failed|[Rr]eset required|NV_ERR_RESET_REQUIRED)"
_SPEAKS_OF = (  # anchored at the start: later in a message there may be file names, which users choose
    r"(?!.{0,60}?\[\d+\]: )"  # no message that begins with a process name: "NAME[123]: segfault at ..."
    r"(?:NVRM: Xid \(PCI:[0-9a-fA-F:.]+\): \d+"
    r"|nvidia-nvswitch\d+: SXid \(PCI:[0-9a-fA-F:.]+\): \d+"
    rf"|{LOST_GPU}"
    r"|efa [0-9a-f:.]+: .*(?:[Ff]ail|[Ee]rror|[Tt]imeout|reset))"
)


def record_incidents(path: str, node: str, job: HookJob, since_s: float, kmsg: str = _KMSG) -> list[str]:
    """Appends the kernel's messages since a job began.

    Args:
        path: the file, one JSON object a line: time_s, node, job, uid, what.
        node: this node.
        job: the job that ran at that time.
        since_s: when the job began, seconds since boot.
        kmsg: the kernel's log; records as Documentation/ABI/testing/dev-kmsg has them.

    Returns:
        The messages.
    """
    recent = [text for at_s, text in kernel_messages(kmsg, _WORDS) if at_s >= since_s]
    if not recent:
        return []
    import json  # here, because most jobs have no incident
    import re

    found = list(dict.fromkeys(text for text in recent if re.match(_SPEAKS_OF, text)))[:_MAX_INCIDENTS]
    if found:
        now_s = round(time.time(), 3)
        rows = [
            {"time_s": now_s, "node": node, "job": job.job_id, "uid": job.uid, "what": what[:500]} for what in found
        ]
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            os.write(descriptor, "".join(json.dumps(row) + "\n" for row in rows).encode())
        finally:
            os.close(descriptor)
        log.warning("job %d: the kernel said %s", job.job_id, "; ".join(found)[:1000])
    return found


def kernel_messages(kmsg: str = _KMSG, words: tuple[bytes, ...] = (b"",)) -> list[tuple[float, str]]:
    """(seconds since boot, text) of every message the kernel still has; empty where it may not be read.

    Args:
        kmsg: the kernel's log.
        words: only records in which one of these is.
    """
    try:
        descriptor = os.open(kmsg, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        log.info("%s cannot be read (%s): what the kernel says is not recorded", kmsg, error.strerror)
        return []
    messages = []
    record = bytearray(_MAX_RECORD_BYTES)
    into = [record]  # one buffer for all records: every epilog reads thousands
    try:
        for _ in range(_MAX_RECORDS):
            try:
                size = os.readv(descriptor, into)
            except BrokenPipeError:  # the kernel has overwritten records; the next read continues after the gap
                continue
            except BlockingIOError:  # no more for now
                break
            if not size:
                break
            for word in words:
                if record.find(word, 0, size) >= 0:
                    break
            else:
                continue
            for line in record[:size].decode(errors="replace").splitlines():
                head, semicolon, text = line.partition(";")
                parts = head.split(",")
                if semicolon and len(parts) >= 3 and parts[2].isdigit():
                    messages.append((int(parts[2]) / 1e6, text))
    except OSError as error:
        log.info("%s: %s", kmsg, error.strerror)
    finally:
        os.close(descriptor)
    return messages
