"""All findings of `holdfast doctor`: about the scheduler, about one node, and about the job's needs."""

from __future__ import annotations

import json
import secrets
import shlex
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ckpt import CheckpointError, check_shared
from launcher.doctor.node import finding_of
from launcher.job.jobfile import JobSpec
from launcher.runner.port import PORTS
from launcher.scheduler.interface import Scheduler
from lifecycle import Finding, Status
from slurm.command import CommandError, CommandRunner, run

NODE_S = 240.0
CLOCK_S = 0.5
_REACHED_S = 3.0
_SEEN_S = 5.0  # time for a network file system to show a new file

Request = dict[str, Any]


def examine(spec: JobSpec | None, folder: Path, scheduler: Scheduler, runner: CommandRunner = run) -> list[Finding]:
    """Checks everything that a job needs.

    Args:
        spec: the job; None for no particular one.
        folder: the folder in which job folders are made.
        scheduler: that of the jobs.
        runner: starts programs.
    """
    section = None if spec is None or spec.checkpoint is None else asdict(spec.checkpoint)
    findings = [*scheduler.findings(spec, runner)]
    to_node = scheduler.on_one_node(spec, findings)
    places = {"job_folder": folder}
    if section and section.get("shared"):
        path = section["shared"]["path"]
        try:
            check_shared(path, section["namespace"])
            places["shared_folder"] = Path(path)
        except (CheckpointError, OSError) as error:
            findings.append(_bad("shared_folder", str(error), "a directory that all nodes see", "see the message"))
    request: Request = {"checkpoint": section, "markers": []}
    if to_node is None:
        return findings
    with ExitStack() as stack:
        markers = {}
        for name, place in places.items():
            try:
                markers[name] = stack.enter_context(_marker(place))
            except OSError as error:
                advice = "choose another folder (--folder), or create it"
                findings.append(_bad(name, f"{place}: {error.strerror}", "writable from here", advice))
        request["markers"] = [str(marker) for marker in markers.values()]
        has_pmix = any(row.check == "pmix" and row.status is Status.OK for row in findings)
        command = [*to_node, sys.executable, "-m", "launcher.doctor.node", json.dumps(request)]
        findings += _on_node(command, to_node, markers, runner, expects_pmix=has_pmix)
    return findings


def _on_node(
    command: list[str],
    to_node: Sequence[str],
    markers: Mapping[str, Path],
    runner: CommandRunner,
    *,
    expects_pmix: bool,
) -> Iterator[Finding]:
    begun_s = time.time()
    try:
        done = runner(command, timeout_s=NODE_S)
        facts = json.loads(done.stdout.splitlines()[-1])
    except (CommandError, ValueError, IndexError) as error:
        words = error.result.stderr if isinstance(error, CommandError) else str(error)
        reason = " ".join(words.split())[-300:] or str(error)
        unknown = Finding(check="node", status=Status.UNKNOWN, measured=reason, expected="a command on one node")
        by_hand = [*to_node, sys.executable, "-c", "import launcher.doctor.node"]
        yield replace(unknown, advice=f"try by hand: {shlex.join(by_hand)}")
        return
    host = facts["host"]
    yield Finding(check="node", status=Status.OK, measured=f"{host}: a command ran in {done.seconds:.1f} s")
    if expects_pmix:
        status = Status.OK if facts["has_pmix"] else Status.CRITICAL
        advice = "" if facts["has_pmix"] else "srun --mpi=pmix env | grep PMIX on a node; see slurmd's log there"
        measured = "PMIX_RANK is set" if facts["has_pmix"] else "PMIX_RANK is not set"
        yield Finding(check="pmix_step", status=status, measured=f"{host}: {measured}", advice=advice)
    for name, marker in markers.items():
        is_seen = str(marker) in facts["seen"] and _appears(marker.with_suffix(".seen"))
        if is_seen:
            yield Finding(check=name, status=Status.OK, measured=f"{marker.parent}: {host} reads and writes it")
        else:
            advice = "choose a folder on a file system that all nodes mount"
            yield _bad(name, f"{marker.parent}: {host} does not read and write it", "seen from every node", advice)
    ahead_s = max(begun_s - facts["time_s"], facts["time_s"] - time.time(), 0.0)
    difference, most = f"{host}: {ahead_s:.1f} s", f"at most {CLOCK_S:g} s"
    row = Finding(check="clock_difference", status=Status.OK, measured=difference, expected=most)
    if ahead_s > CLOCK_S:
        row = replace(row, status=Status.WARNING, advice="chrony or another time server, here and on the nodes")
    yield row
    if to_node:
        yield _rendezvous(host, facts["filter_refused"])
    yield from map(finding_of, facts["findings"])


def _rendezvous(host: str, refused: str) -> Finding:
    """A finding: whether other hosts than the job's can reach torch's store on a node. This host is the example."""
    expected = "only the job's own hosts reach torch's rendezvous"
    row = Finding(check="rendezvous", status=Status.OK, measured=f"{host}: a socket filter", expected=expected)
    if not refused:
        return row
    why = f"{host} refuses users socket filters ({refused})"
    port = PORTS[-1]
    try:
        socket.create_connection((host, port), _REACHED_S).close()
    except ConnectionRefusedError:
        pass
    except socket.gaierror as error:
        return replace(row, status=Status.UNKNOWN, measured=f"{why}; its name is not known here: {error.strerror}")
    except OSError:
        return replace(row, measured=f"{why}; this host does not reach its port {port}")
    advice = "trust all users of the network, or see docs/admin/security.md"
    return replace(row, status=Status.WARNING, measured=f"{why}; this host reaches its port {port}", advice=advice)


@contextmanager
def _marker(folder: Path) -> Iterator[Path]:
    """Makes a marker file in a folder or its nearest existing parent. Removes it and the node's answer at the end."""
    nearest = next(parent for parent in (folder, *folder.parents) if parent.is_dir())
    marker = nearest / f".holdfast-doctor-{secrets.token_hex(8)}.asked"
    marker.touch(mode=0o600, exist_ok=False)
    try:
        yield marker
    finally:
        marker.unlink(missing_ok=True)
        marker.with_suffix(".seen").unlink(missing_ok=True)


def _appears(path: Path) -> bool:
    deadline_s = time.monotonic() + _SEEN_S
    while not path.exists():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.1)
    return True


def _bad(check: str, measured: str, expected: str, advice: str) -> Finding:
    measured = " ".join(measured.split())
    return Finding(check=check, status=Status.CRITICAL, measured=measured, expected=expected, advice=advice)
