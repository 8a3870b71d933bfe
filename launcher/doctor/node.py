"""The part of `holdfast doctor` that runs on a node, in one step: `python -m launcher.doctor.node REQUEST`.

It runs `holdfast node check`, `versions` and `env`, as a user would.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ckpt import CheckpointConfig, CheckpointError, check_shared
from ckpt.cli.app import probe_bucket
from holdfast.base.environment import Variable
from launcher.connections.job_socket import filter_refused
from lifecycle import Finding, Status
from slurm.command import CommandError, run

CHECK_S = 60.0
_VERB_S = 90.0
_SHOWN = ("memory_file_system", "locked_memory", "open_files", "clock", "remove_ipc")  # also where they are ok
_WORDS = {status.word: status for status in Status}


def look(request: Mapping[str, Any]) -> dict[str, Any]:
    """Looks at this node.

    Args:
        request: `markers`: files to read, each answered by a file in the same folder; `checkpoint`: the job's section,
            or null.

    Returns:
        JSON data: the node's name, its time, the markers that it has read, the reason why it refuses socket filters
        ("" if it does not), and its findings.
    """
    seen = [marker for marker in request["markers"] if _answer(Path(marker))]
    findings = [*_health(), *_versions(), *_environment()]
    findings += [*judge_disk(request["checkpoint"], os.environ), *_bucket(request["checkpoint"])]
    return {
        "host": os.uname().nodename,
        "time_s": time.time(),
        "seen": seen,
        "has_pmix": "PMIX_RANK" in os.environ,
        "filter_refused": filter_refused(),
        "findings": [finding.to_mapping() for finding in findings],
    }


def finding_of(row: Mapping[str, Any]) -> Finding:
    """A finding from JSON data."""
    measured, expected, advice = (str(row.get(name, "")) for name in ("measured", "expected", "advice"))
    status = _WORDS[row["status"]]
    return Finding(check=str(row["name"]), status=status, measured=measured, expected=expected, advice=advice)


def _answer(marker: Path) -> bool:
    """Whether the marker file exists, and this node can write an answer into the same folder."""
    try:
        marker.with_suffix(".seen").write_bytes(marker.read_bytes())
    except OSError:
        return False
    return True


def _health() -> Iterator[Finding]:
    facts = _verb("node_check", "node", "check", "--level", "quick", f"--within={CHECK_S:g}", "--json")
    if isinstance(facts, Finding):
        yield facts
        return
    findings = [finding_of(row) for row in facts["checks"]]
    for finding in findings:
        if finding.status is not Status.SKIPPED and (finding.check in _SHOWN or finding.status is not Status.OK):
            yield finding
    ok, skipped = (sum(finding.status is status for finding in findings) for status in (Status.OK, Status.SKIPPED))
    measured = f"{len(findings)} checks: {ok} ok, {skipped} skipped, because the node has no such part"
    yield Finding(check="node_check", status=Status.OK, measured=measured)


def _versions() -> Iterator[Finding]:
    facts = _verb("versions", "node", "versions", "--json")
    if isinstance(facts, Finding):
        yield facts
        return
    here = facts["installed"]
    measured = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in here.items() if value) or "nothing"
    expected, advice = "versions that belong together (versions.yaml)", "`holdfast node versions` on the node"
    row = Finding(check="versions", status=Status.OK, measured=measured, expected=expected)
    if not here["torch"]:
        advice = "install torch there, or submit from another Python"
        yield replace(row, status=Status.CRITICAL, measured=f"no torch in {sys.executable}", advice=advice)
    elif facts["conflicts"]:
        yield replace(row, status=Status.WARNING, measured="; ".join(facts["conflicts"]), advice=advice)
    else:
        yield row


def _environment() -> Iterator[Finding]:
    facts = _verb("environment", "node", "env", "--json")
    if isinstance(facts, Finding):
        yield facts
        return
    for remark in facts["remarks"]:
        status = Status.CRITICAL if remark["severity"] == "harmful" else Status.WARNING
        measured = f"{remark['variable']}={remark['value']}"
        yield Finding(check="environment", status=status, measured=measured, advice=remark["reason"])
    if not facts["remarks"]:
        yield Finding(check="environment", status=Status.OK, measured="nothing harmful is set")


def judge_disk(section: Mapping[str, Any] | None, env: Mapping[str, str]) -> Iterator[Finding]:
    """Whether this user can write the `nvme` tier on this node. Other errors show only when a job writes there."""
    if section is None or not section.get("nvme"):
        return
    path, node = section["nvme"]["path"], env.get("SLURMD_NODENAME", os.uname().nodename)
    row = Finding(check="nvme_folder", status=Status.OK, measured=f"{path}: can be written", expected="writable here")
    try:
        check_shared(Path(path) / node, section["namespace"])
    except (CheckpointError, OSError) as error:
        advice = "a directory of your own on the node's disk; with the hooks' local_disk: /local, /local/holdfast-$UID"
        if (given := env.get(Variable.DISK_DIR)) is not None:
            advice = f"the prolog made one for you: nvme: {{path: {given}}}"
        row = replace(row, status=Status.CRITICAL, measured=" ".join(str(error).split()), advice=advice)
    yield row


def _bucket(section: Mapping[str, Any] | None) -> Iterator[Finding]:
    if section is None or not section.get("s3"):
        return
    row = Finding(check="s3_rights", status=Status.OK, measured=section["s3"]["url"], expected="put, get, delete")
    try:
        probe_bucket(CheckpointConfig.from_json(section))
    except (CheckpointError, OSError) as error:
        advice = "rights s3:PutObject, s3:GetObject, s3:DeleteObject; credentials; AWS_ENDPOINT_URL"
        row = replace(row, status=Status.CRITICAL, measured=" ".join(str(error).split()), advice=advice)
    yield row


def _verb(name: str, *words: str) -> Any:
    """The output of a verb with --json; or a finding that it failed."""
    try:
        done = run([sys.executable, "-m", "launcher", *words], timeout_s=_VERB_S, check=False)
        return json.loads(done.stdout)
    except (CommandError, ValueError) as error:
        reason = str(error) if isinstance(error, CommandError) else " ".join(done.stderr.split()[-40:])
        return Finding(check=name, status=Status.UNKNOWN, measured=reason, advice=f"holdfast {' '.join(words[:2])}")


if __name__ == "__main__":
    print(json.dumps(look(json.loads(sys.argv[1]))))
