"""Another user on a job's node can neither talk to what runs there nor read what it keeps. Real accounts and Slurm."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from main_job import Watch
from slurm_kit import ends_as

from launcher.leadership.terms import newest
from slurm.command import Result, run

pytestmark = pytest.mark.slurm

STRANGER = "games"
JOB = """
import os, sys, time
from pathlib import Path
import torch
from ckpt import Checkpointer
if os.environ["RANK"] == "0":
    Path(sys.argv[1]).with_name("rendezvous").write_text(os.environ["MASTER_ADDR"] + " " + os.environ["MASTER_PORT"])
state = {"weights": torch.zeros(1000)}
with Checkpointer.from_env() as ckpt:
    step = ckpt.load(state) or 0
    end = Path(sys.argv[1])
    while not end.exists() or step < int(end.read_text()):  # ranks end after the same step
        step += 1
        ckpt.save(step, state)
        if ckpt.should_stop(step):
            break
        time.sleep(0.05)
"""
# Run inside a node, by the system's own Python: prints what it could do to each of the things given.
PROBE = """
import hmac, json, os, socket, stat, sys
wanted = json.load(open(sys.argv[1]))
done = {}
def attempt(name, what):
    try:
        done[name] = what()
    except OSError as error:
        done[name] = type(error).__name__
def touch(path):
    found = os.stat(path)
    if stat.S_ISSOCK(found.st_mode):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as end:
            end.connect(path)
        return "connected"
    if stat.S_ISDIR(found.st_mode):
        os.listdir(path)
        return "listed"
    open(path, "rb").close()
    return "opened"
for path in wanted["paths"]:
    attempt(path, lambda: touch(path))
for pid in wanted["pids"]:
    attempt("environment of %d" % pid, lambda: open("/proc/%d/environ" % pid, "rb").read() and "read")
    attempt("memory of %d" % pid, lambda: open("/proc/%d/mem" % pid, "rb").close() or "opened")
    attempt("signal to %d" % pid, lambda: os.kill(pid, 0) or "sent")
def greet(secret):
    with socket.create_connection(tuple(wanted["supervisor"]), 10) as end:
        nonce = bytes(16)
        theirs = b""
        while len(theirs) < 16:
            theirs += end.recv(16 - len(theirs))
        key = hmac.digest(secret, b"holdfast channel 1" + nonce + theirs, "sha256")
        hello = json.dumps({"op": "hello", "node": wanted["node"], "pid": 1, "warm": True, "port": 1,
                            "problem": None}).encode()
        mac = hmac.digest(key, b"c" + bytes(8) + hello, "sha256")
        end.sendall(nonce + len(hello).to_bytes(4, "big") + mac + hello)
        return "answered" if end.recv(1) else "closed"
def secret():
    try:
        return bytes.fromhex(open(wanted["secret"]).read())
    except OSError:
        return bytes(32)
if wanted["greet"]:
    attempt("supervisor", lambda: greet(secret()))
print(json.dumps(done))
"""

# Whoever connects to torch's store can list, read and write its keys.
CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 5).close()
    print("connected")
except OSError as error:
    print(type(error).__name__)
"""


@pytest.fixture
def job(slurm_cluster: Any) -> Any:
    """A job on two nodes that has committed a step and saves on until the test ends it."""
    folder = slurm_cluster.home / "another-user"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    yield from guarded_job(slurm_cluster, folder, slurm_cluster.user, slurm_cluster.run_as_user)


@pytest.fixture
def job_of_root(slurm_cluster: Any) -> Any:
    """The same with the rights of root, in a folder that only root can change."""

    def submit(argv: list[str], cwd: Path) -> Result:
        return run(argv, cwd=cwd, env=os.environ | slurm_cluster.env, timeout_s=60)

    folder = Path(tempfile.mkdtemp(prefix="holdfast-root-", dir="/var/tmp"))
    yield from guarded_job(slurm_cluster, folder, "root", submit)
    shutil.rmtree(folder)


def guarded_job(cluster: Any, folder: Path, user: str, submit: Callable[..., Result]) -> Iterator[Watch]:
    end = folder / "end"
    (folder / "train.py").write_text(JOB)
    mapping = {
        "name": "guarded",
        "script": "train.py",
        "args": [str(end)],
        "nodes": 2,
        "checkpoint": {
            "namespace": "guarded",
            "memory": {"every_steps": 1, "keep": 2},
            "redundancy": {"scheme": "partner"},
            "shared": {"path": "checkpoints", "every_steps": 1},
        },
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(mapping))
    subprocess.run(["chown", "-R", user, folder], check=True)
    facts = json.loads(submit([sys.executable, "-m", "launcher", "submit", "job.yaml", "--json"], cwd=folder).stdout)
    watch = Watch(Path(facts["folder"]))
    watch.wait_for("commit", 120, tier="memory")
    watch.wait_for("commit", 60, tier="shared")
    yield watch
    last = max(event["step"] for event in watch.events("commit")) + 50  # no rank is there yet
    (folder / "end.new").write_text(str(last))
    (folder / "end.new").rename(end)
    watch.until(ends_as(cluster, facts["job_id"], "COMPLETED"), 60, "end of the job")  # nothing writes there any more
    assert (watch.job_dir / "result.json").exists()


def probe(cluster: Any, node: str, user: str, wanted: dict[str, Any]) -> dict[str, str]:
    task = cluster.home / "probe.json"
    task.write_text(json.dumps(wanted))
    task.chmod(0o644)
    return json.loads(run_as(cluster, node, user, PROBE, str(task)))


def run_as(cluster: Any, node: str, user: str, code: str, *args: str) -> str:
    who = pwd.getpwnam(user)
    become = ["setpriv", f"--reuid={who.pw_uid}", f"--regid={who.pw_gid}", "--clear-groups", "--inh-caps=-all"]
    return cluster.run_on_node(node, [*become, "/usr/bin/python3", "-c", code, *args]).stdout.strip()


def test_another_user_on_the_node_is_shut_out_of_the_job(slurm_cluster: Any, job: Watch) -> None:
    supervisor = newest(job.job_dir)
    assert supervisor is not None
    secret = (job.job_dir / "secret").read_text()
    node = job.events("attempt_start")[0]["nodes"][1]  # not the batch host: its runner and its agent
    memory = slurm_cluster.run_on_node(
        node, ["find", "/dev/shm", "-mindepth", "1", "-path", "*holdfast*"]
    ).stdout.split()
    kept = {Path(path).suffix for path in memory}
    assert {".sock", ".data", ".json"} <= kept, memory
    listing = slurm_cluster.run_on_node(node, ["pgrep", "-u", slurm_cluster.user, "-f", "launcher.runner|ckpt.agent"])
    pids = [int(pid) for pid in listing.stdout.split()]
    assert len(pids) >= 2
    folders = [job.job_dir, job.job_dir / "log", job.job_dir.parent.parent / "checkpoints" / "guarded"]
    files = [job.job_dir / name for name in ("secret", "events.jsonl", "job.json", "log/supervisor.log")]
    steady = [path for path in memory if not path.endswith(".json")]  # records come and go with every save
    wanted = {
        "paths": [*map(str, folders), *map(str, files), *steady],
        "pids": pids,
        "supervisor": [supervisor.host, supervisor.port],
        "secret": str(job.job_dir / "secret"),
        "node": "n9",  # no node of the job: whoever is let in does no harm
        "greet": True,
    }
    could = probe(slurm_cluster, node, STRANGER, wanted)
    assert could.pop("supervisor") in ("closed", "ConnectionResetError")
    assert {what: how for what, how in could.items() if how != "PermissionError"} == {}
    everything = slurm_cluster.run_on_node(node, ["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"], check=False)
    assert "launcher.runner" in everything.stdout and secret not in everything.stdout  # anybody may read these
    # The same probe has teeth: the job's own user can do all of it.
    own = probe(slurm_cluster, node, slurm_cluster.user, wanted | {"greet": False})
    assert {own[path] for path in wanted["paths"] if path.endswith("secret")} == {"opened"}
    assert {own[path] for path in steady if path.endswith(".sock")} == {"connected"}
    assert own[f"signal to {pids[0]}"] == "sent"
    # Nothing of this disturbed the job.
    assert not job.events("fault") and not job.events("node_out")
    assert os.stat(job.job_dir / "secret").st_mode & 0o777 == 0o600


ALL_JOBS = """
import json
from launcher.screen.cluster_jobs import ClusterJobs
jobs = ClusterJobs()
print(json.dumps([[job.job_id, jobs.users[job.job_id], status.state, status.step > 0] for job, status in jobs.now()]))
print(jobs.remark)
"""


def test_an_administrator_sees_the_job_in_top_and_another_user_does_not(slurm_cluster: Any, job: Watch) -> None:
    def seen_by(user: str) -> tuple[list[Any], str]:
        who = pwd.getpwnam(user)
        become = ["setpriv", f"--reuid={who.pw_uid}", f"--regid={who.pw_gid}", "--clear-groups"]
        environment = slurm_cluster.env | {"HOME": "/nowhere", "USER": user}
        done = run([*become, sys.executable, "-c", ALL_JOBS], env=environment, cwd="/", timeout_s=60)
        jobs, remark = done.stdout.splitlines()
        return [each for each in json.loads(jobs) if each[2] == "training"], remark

    assert seen_by("root")[0] == [[job.job_dir.name, slurm_cluster.user, "training", True]]
    nothing, remark = seen_by(STRANGER)
    assert nothing == [] and "folders that cannot be read" in remark


def test_another_user_on_another_node_does_not_reach_torchs_rendezvous(slurm_cluster: Any, job_of_root: Watch) -> None:
    """The job is root's, as some kernels, this one perhaps, allow filters of sockets to nobody else."""
    job = job_of_root
    address = (job.job_dir.parent.parent / "rendezvous").read_text().split()
    own = job.events("attempt_start")[0]["nodes"]
    elsewhere = next(node for node in slurm_cluster.nodes if node not in own)
    assert run_as(slurm_cluster, elsewhere, STRANGER, CONNECT, *address) == "TimeoutError"
    # The same attempt has teeth: from the job's nodes it succeeds.
    assert [run_as(slurm_cluster, node, slurm_cluster.user, CONNECT, *address) for node in own] == ["connected"] * 2
    assert not job.events("fault")
