"""Hooks as slurmd calls them, on directories of the test; and on a real Slurm, as their tests look at them."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from slurm.client import Slurm
from slurm.command import CommandError, CommandRunner, Result
from slurm.hooks.epilog import epilog
from slurm.hooks.hook import HookJob, run_hook
from slurm.hooks.places import Places
from slurm.hooks.prolog import prolog
from slurm.hooks.settings import HookSettings, write_settings
from slurm.records import Node
from slurm.testbed import TestCluster
from slurm.testbed.plan import account

ROOT = Path(__file__).resolve().parents[2]


USER, OTHER = account("nobody").pw_uid, account("daemon").pw_uid

# Hooks end a user's processes by the number of their job: tests that run beside these have other numbers.
JOB = 77_000 + 10 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
NEXT = HookJob(job_id=JOB + 1, uid=OTHER, gid=OTHER, cluster="c")


BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text().strip()


as_root = pytest.mark.slurm  # hooks become other users: they need root, as the clusters of the other tests do


def environment(job: HookJob, **more: str) -> dict[str, str]:
    numbers = {"SLURM_JOB_ID": str(job.job_id), "SLURM_JOB_UID": str(job.uid), "SLURM_JOB_GID": str(job.gid)}
    return {**numbers, "SLURM_CLUSTER_NAME": job.cluster, "SLURMD_NODENAME": "n1", **more}


class TenNodes:
    """scontrol of a cluster n1 ... n10.

    Attributes:
        drained: nodes that hooks of ours have drained.
        meanwhile: nodes whose drain is seen only after the first of this one.
        reason: what all of them are drained for.
    """

    def __init__(self, *drained: str, meanwhile: Sequence[str] = (), reason: str = "holdfast: x") -> None:
        self.drained = set(drained)
        self.reason = reason
        self.meanwhile = meanwhile

    def __call__(self, argv: Sequence[str], **_: object) -> Result:
        text = ""
        if argv[:2] == ["scontrol", "show"]:
            names = [argv[4]] if argv[4:] else [f"n{n}" for n in range(1, 11)]
            flags = {name: "+DRAIN" if name in self.drained else "" for name in names}
            line = "NodeName={} CPUTot=8 State=IDLE{} SlurmdStartTime=None Reason={} [root@2026-11-20T23:19:59]\n"
            text = "".join(line.format(*item, self.reason) for item in flags.items())
        elif "State=DRAIN" in argv:
            self.drained |= {argv[2].removeprefix("NodeName="), *self.meanwhile}
        else:
            assert argv[3] == "State=RESUME"
            self.drained.remove(argv[2].removeprefix("NodeName="))
        return Result(argv=tuple(argv), returncode=0, stdout=text, stderr="", seconds=0.0)


def silent(argv: Sequence[str], **_: object) -> Result:
    """scontrol where no controller answers."""
    result = Result(argv=tuple(argv), returncode=1, stdout="", stderr="Unable to contact slurm controller", seconds=0)
    raise CommandError(result, "exit code 1")


def settings(places: Places, text: str) -> None:
    """Writes hooks.yaml, flat lines here, and compiles it."""
    file = Path(places.settings_file)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    types = {key: type(value) for key, value in vars(HookSettings()).items()}
    pairs = (line.split(": ", 1) for line in text.splitlines())
    write_settings(places, HookSettings(**{key: types[key](value) for key, value in pairs}), text)


def verdict(places: Places, status: str, **changes: object) -> None:
    check = {
        "name": "gpu_count",
        "status": status,
        "measured": "7",
        "expected": "8",
        "advice": "replace",
        "time_s": 1.0,
    }
    content = {
        "version": 1,
        "node": "n1",
        "time_s": time.time(),
        "boot_id": BOOT_ID,
        "level": "quick",
        "status": status,
    }
    file = Path(places.verdict)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content | {"checks": [check]} | changes))


def run(
    name: str, places: Places, env: dict[str, str], limit_s: float = 20.0, slurm: CommandRunner | None = None
) -> int:
    body = partial({"prolog": prolog, "epilog": epilog}[name], slurm=Slurm(run=slurm or TenNodes()))
    return run_hook(name, body, places=places, env=env, limit_s=limit_s)


def memory_of(places: Places, job: HookJob) -> Path:
    return Path(places.memory) / f"holdfast-{job.uid}" / job.run


def as_user(uid: int, script: str, **env: str) -> subprocess.Popen[bytes]:
    """A shell script of another user, who may not reach our Python; it says when it is ready."""
    process = subprocess.Popen(
        ["/bin/sh", "-c", script],
        user=uid, group=uid, extra_groups=[], env=env, cwd="/", stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    return process


SLEEP = "echo ready; exec sleep 60"


def environments_of(uid: int) -> Iterator[str]:
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if path.stat().st_uid == uid:
                yield (path / "environ").read_text(errors="replace")
        except OSError:
            continue


def state(cluster: TestCluster, name: str) -> Node:
    return next(node for node in Slurm(env=os.environ | cluster.env).nodes() if node.name == name)
