"""Another user plants the folder of a job's checkpoints, open to everybody, before the job makes it. Two real accounts.

The folders' parent is one in which both may write, as /tmp is. Without the check the job would take the folder for its
own: the neighbour can read, change and remove what is saved there, or refuse it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.history.events import read_events
from slurm.testbed.host import as_user
from slurm.testbed.plan import account

pytestmark = pytest.mark.slurm  # root becomes both users

VICTIM, NEIGHBOUR = account("nobody"), account("games")
TRAIN = """
import torch
from ckpt import Checkpointer
state = {"weights": torch.zeros(1000)}
with Checkpointer.from_env() as ckpt:
    step = ckpt.load(state) or 0
    while step < 4:
        step += 1
        ckpt.save(step, state)
"""
SUPERVISE = """
import sys
from pathlib import Path
from launcher.job.jobfile import load_job
from launcher.supervisor import supervise
supervise(load_job(Path("job.yaml")), Path("job"), "local")
"""


HOLD = """
import sys
from pathlib import Path
from ckpt.tiers.posix import SharedTier
tier = SharedTier(Path("open"), "mine")
tier.prepare()
print("prepared", flush=True)
sys.stdin.readline()
tier._put("owner.json", b"x")
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """The victim's folder; `open` in it is a directory where everybody may make files."""
    path = Path(tempfile.mkdtemp(prefix="holdfast-planted-", dir="/var/tmp"))
    os.chown(path, VICTIM.pw_uid, VICTIM.pw_gid)
    path.chmod(0o755)
    (path / "open").mkdir()
    (path / "open").chmod(0o1777)
    (path / "train.py").write_text(TRAIN)
    yield path
    shutil.rmtree(path)
    shutil.rmtree(f"/dev/shm/holdfast-{VICTIM.pw_uid}", ignore_errors=True)


def write_job(folder: Path, **tiers: Any) -> None:
    job = {"name": "t", "script": "train.py", "nodes": 1, "restart": {"max_without_progress": 1}}
    checkpoint = {"namespace": "mine", "memory": {"every_steps": 1}, **tiers}
    (folder / "job.yaml").write_text(yaml.safe_dump(job | {"checkpoint": checkpoint}))


def plant(path: Path) -> None:
    script = f"mkdir -p {path} && chmod 0777 {path}"
    subprocess.run(as_user(["sh", "-c", script], NEIGHBOUR), check=True)


def victim(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    env = {"HOME": str(folder), "PATH": os.environ["PATH"], "XDG_STATE_HOME": str(folder / "state")}
    words = as_user([sys.executable, *argv], VICTIM)
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=240, check=False)


def test_it_is_refused_when_the_job_is_submitted(folder: Path) -> None:
    write_job(folder, shared={"path": "open", "every_steps": 1})
    plant(folder / "open" / "mine")
    done = victim(folder, "-m", "launcher", "run", "job.yaml", "--folder", "runs/%j")
    assert done.returncode == 2, done.stderr
    assert f"belongs to uid {NEIGHBOUR.pw_uid}" in " ".join(done.stderr.split()), done.stderr
    assert not list((folder / "open" / "mine").iterdir())


def test_it_is_refused_when_the_job_starts(folder: Path) -> None:
    """It was planted while the job waited in the queue."""
    write_job(folder, shared={"path": "open", "every_steps": 1})
    plant(folder / "open" / "mine")
    victim(folder, "-c", SUPERVISE)
    result = json.loads((folder / "job" / "result.json").read_text())
    assert result["name"] != "done" and f"belongs to uid {NEIGHBOUR.pw_uid}" in result["reason"], result
    assert not list((folder / "open" / "mine").iterdir())
    refused = "nothing can be saved to the shared tier"
    events = read_events(folder / "job" / "events.jsonl")
    assert any(event["event"] == "problem" and refused in event["what"] for event in events), events
    assert not any(event["event"] == "commit" and event.get("tier") == "shared" for event in events)


def test_a_nodes_disk_that_refuses_is_said_before_the_first_save(folder: Path) -> None:
    write_job(folder, nvme={"path": str(folder / "open"), "every_steps": 1000})
    plant(folder / "open" / "node0" / "mine")
    victim(folder, "-c", SUPERVISE)
    events = read_events(folder / "job" / "events.jsonl")
    problems = [f"{event['what']}: {event.get('detail')}" for event in events if event["event"] == "problem"]
    assert any(f"belongs to uid {NEIGHBOUR.pw_uid}" in problem for problem in problems), events
    assert not list((folder / "open" / "node0" / "mine").iterdir())


def test_a_link_in_place_of_the_folder_is_refused(folder: Path) -> None:
    """It leads to an empty folder of the victim's own, and could be turned to another one after the start."""
    write_job(folder, shared={"path": "open", "every_steps": 1})
    (folder / "own").mkdir()
    os.chown(folder / "own", VICTIM.pw_uid, VICTIM.pw_gid)
    script = f"ln -s {folder / 'own'} {folder / 'open' / 'mine'}"
    subprocess.run(as_user(["sh", "-c", script], NEIGHBOUR), check=True)
    done = victim(folder, "-m", "launcher", "run", "job.yaml", "--folder", "runs/%j")
    assert done.returncode == 2, done.stderr
    assert f"is a symbolic link of uid {NEIGHBOUR.pw_uid}" in " ".join(done.stderr.split()), done.stderr
    assert not list((folder / "own").iterdir())


def test_what_replaces_the_folder_of_a_running_job_is_never_written_to(folder: Path) -> None:
    """In a directory that a group may write to, and that is not sticky, a neighbour may rename the victim's folder."""
    os.chmod(folder / "open", 0o777)
    theirs = folder / "open" / "theirs"
    plant(theirs)
    job = subprocess.Popen(
        as_user([sys.executable, "-c", HOLD], VICTIM), cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert job.stdout is not None and job.stdout.readline() == "prepared\n"
        script = f"mv {folder}/open/mine {folder}/open/moved && ln -s theirs {folder}/open/mine"
        subprocess.run(as_user(["sh", "-c", script], NEIGHBOUR), check=True)
        _, said = job.communicate("\n", timeout=60)
    finally:
        job.kill()
        job.wait()
    assert f"is a symbolic link of uid {NEIGHBOUR.pw_uid}" in said
    assert not list(theirs.iterdir())
