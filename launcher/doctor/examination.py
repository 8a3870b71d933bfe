"""All findings of `holdfast doctor`: about Slurm, about one node (in one step), and about the job's needs."""

from __future__ import annotations

import json
import os
import pwd
import secrets
import shutil
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ckpt import CheckpointError, check_shared
from launcher.clusters.local.cluster import require_mpirun
from launcher.clusters.mpirun import find_mpirun
from launcher.doctor.boosters import judge_boosters
from launcher.doctor.node import finding_of
from launcher.doctor.slurm_settings import judge_export, judge_settings
from launcher.errors import LauncherError
from launcher.job.jobfile import JobSpec
from launcher.runner.port import PORTS
from lifecycle import Finding, Status
from slurm import Slurm, SlurmError
from slurm.command import CommandError, CommandRunner, run
from slurm.conf import lint

QUEUE_S = 60  # how long the step waits for a free node
STEP_MIN = 5
NODE_S = 240.0
CLOCK_S = 0.5
_REACHED_S = 3.0
_SEEN_S = 5.0  # time for a network file system to show a new file
_OF_THE_STEP = ("partition", "account", "qos", "reservation", "constraint", "container-image", "container-mounts")

Request = dict[str, Any]


def examine(spec: JobSpec | None, folder: Path, *, on_slurm: bool, runner: CommandRunner = run) -> list[Finding]:
    """Checks everything that a job needs.

    Args:
        spec: the job; None for no particular one.
        folder: the folder in which job folders are made.
        on_slurm: whether jobs run on Slurm; else on the local cluster, and this machine is the node.
        runner: starts programs.
    """
    section = None if spec is None or spec.checkpoint is None else asdict(spec.checkpoint)
    findings = [*_slurm(spec, runner)] if on_slurm else [*_local(spec)]
    places = {"job_folder": folder}
    if section and section.get("shared"):
        path = section["shared"]["path"]
        try:
            check_shared(path, section["namespace"])
            places["shared_folder"] = Path(path)
        except (CheckpointError, OSError) as error:
            findings.append(_bad("shared_folder", str(error), "a directory that all nodes see", "see the message"))
    request: Request = {"checkpoint": section, "markers": []}
    if any(row.check == "slurm" for row in findings):
        return findings  # no step can be run
    with ExitStack() as stack:
        markers = {}
        for name, place in places.items():
            try:
                markers[name] = stack.enter_context(_marker(place))
            except OSError as error:
                advice = "choose another folder (--folder), or create it"
                findings.append(_bad(name, f"{place}: {error.strerror}", "writable from here", advice))
        request["markers"] = [str(marker) for marker in markers.values()]
        has_pmix = on_slurm and any(row.check == "pmix" and row.status is Status.OK for row in findings)
        command = [*_step(spec, has_pmix), sys.executable, "-m", "launcher.doctor.node", json.dumps(request)]
        command = command if on_slurm else command[-4:]
        findings += _on_node(command, markers, runner, expects_pmix=has_pmix, on_slurm=on_slurm)
    return findings


def _slurm(spec: JobSpec | None, runner: CommandRunner) -> Iterator[Finding]:
    try:
        slurm = Slurm(run=runner)
        config = slurm.config()
    except SlurmError as error:
        advice = "set SLURM_CONF to the cluster's slurm.conf and check munge; --cluster local checks only this machine"
        yield _bad("slurm", str(error), "an answer to scontrol show config", advice)
        return
    yield from judge_settings(config)
    yield from judge_boosters(spec, slurm)
    yield from judge_export(config, None if spec is None else spec.slurm.get("export"), _login_shell())
    yield from _hooks(config)
    try:
        types = slurm.mpi_types()
        listed = ", ".join(types) or "nothing"
    except SlurmError as error:
        types, listed = (), str(error)
    if "pmix" in types:
        yield Finding(check="pmix", status=Status.OK, measured="srun --mpi=list has pmix", expected="pmix")
    else:
        advice = "install Slurm's pmix plugin: srun starts the checkpoint agents by it"
        row = _bad("pmix", f"srun --mpi=list: {listed[:200]}", "pmix", advice)
        if (mpirun := find_mpirun()) is not None:
            row = replace(row, status=Status.WARNING, advice=f"{advice}; without it {mpirun} does, in no container")
        yield row


def _login_shell() -> str:
    """That of the caller; "" for a user without an account."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_shell
    except KeyError:
        return ""


def _hooks(config: Mapping[str, str]) -> Iterator[Finding]:
    path = Path(config.get("SLURM_CONF", "/etc/slurm/slurm.conf"))
    try:
        remarks = lint(path.read_text(errors="replace"))
    except OSError as error:
        why = f"{path}: {error.strerror}"
        yield Finding(check="hooks", status=Status.UNKNOWN, measured=why, advice="ask an administrator")
        return
    needed = [remark.parameter for remark in remarks if remark.needed]
    row = Finding(check="hooks", status=Status.OK, measured=f"{path} calls them", expected="Holdfast's hooks")
    if needed:
        advice = f"holdfast node slurm-conf --lint {path}; jobs run without hooks, but failed nodes stay in service"
        row = replace(row, status=Status.WARNING, measured=f"{path} lacks {', '.join(needed)}", advice=advice)
    yield row


def _local(spec: JobSpec | None) -> Iterator[Finding]:
    if spec is not None and spec.checkpoint is None:
        return
    try:
        if spec is not None:
            require_mpirun(spec)
        elif shutil.which("mpirun", path=str(Path(sys.executable).parent)) is None and shutil.which("mpirun") is None:
            raise LauncherError("mpirun: not found")
    except LauncherError as error:
        yield _bad("mpirun", str(error), "mpirun, for checkpoint agents", "pip install 'holdfast-hpc[mpi]'")
        return
    yield Finding(check="mpirun", status=Status.OK, measured="found", expected="mpirun, for checkpoint agents")


def _step(spec: JobSpec | None, has_pmix: bool) -> list[str]:
    options = {} if spec is None else {name: spec.slurm[name] for name in _OF_THE_STEP if name in spec.slurm}
    gpus = [f"--gpus-per-node={spec.gpus_per_node}"] if spec is not None and spec.gpus_per_node else []
    return [
        *("srun", "--nodes=1", "--ntasks=1", f"--immediate={QUEUE_S}", f"--time={STEP_MIN}", "--quiet"),
        *("--job-name=holdfast-doctor", f"--mpi={'pmix' if has_pmix else 'none'}", *gpus),
        *(f"--{name}={value}" if value is not True else f"--{name}" for name, value in options.items()),
    ]


def _on_node(
    command: list[str], markers: Mapping[str, Path], runner: CommandRunner, *, expects_pmix: bool, on_slurm: bool
) -> Iterator[Finding]:
    begun_s = time.time()
    try:
        done = runner(command, timeout_s=NODE_S)
        facts = json.loads(done.stdout.splitlines()[-1])
    except (CommandError, ValueError, IndexError) as error:
        words = error.result.stderr if isinstance(error, CommandError) else str(error)
        reason = " ".join(words.split())[-300:] or str(error)
        advice = f"`sinfo` shows free nodes; the step waits {QUEUE_S} s for one"
        unknown = Finding(check="node", status=Status.UNKNOWN, measured=reason, expected="one step on one node")
        yield replace(unknown, advice=advice)
        return
    host = facts["host"]
    yield Finding(check="node", status=Status.OK, measured=f"{host}: a step ran in {done.seconds:.1f} s")
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
    if on_slurm:
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
