"""The queue: $SHELF_DIR has a folder for each job. `python -m launcher.clusters.shelf.queue` runs those that wait."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ckpt.agent.process.launch import PYTHON
from launcher.job.supervisor_process import Process


def folder_of(job_id: str) -> Path:
    return Path(os.environ["SHELF_DIR"]) / job_id


def new_id() -> str:
    number = 1
    while True:
        try:
            folder_of(str(number)).mkdir(parents=True)
            return str(number)
        except FileExistsError:
            number += 1


def enqueue(job_id: str, argv: Sequence[str], nodes: Sequence[str], log: Path) -> None:
    variables = {"SHELF_JOB": job_id, "SHELF_NODES": " ".join(nodes)}
    request = {"argv": list(argv), "env": {**os.environ, **variables}, "log": str(log)}
    draft = folder_of(job_id) / "draft"
    draft.write_text(json.dumps(request))
    draft.rename(folder_of(job_id) / "request.json")
    with (folder_of(job_id) / "queue.log").open("ab") as log:
        subprocess.Popen(
            [*PYTHON, "-m", __name__], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )


def state(job_id: str) -> str:
    """WAITING, RUNNING, ENDED, or UNKNOWN."""
    folder = folder_of(job_id)
    if not folder.is_dir():
        return "UNKNOWN"
    if not (folder / "taken").exists():
        return "WAITING"
    process = Process.read(folder)
    return "RUNNING" if process is not None and process.alive() else "ENDED"


def take(job_id: str) -> bool:
    """Take a job from the queue, to start or to remove it. False: it is no longer there."""
    try:
        os.close(os.open(folder_of(job_id) / "taken", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    return True


def main() -> None:
    shelf = Path(os.environ["SHELF_DIR"])
    with (shelf / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for path in sorted(shelf.glob("*/request.json"), key=lambda path: int(path.parent.name)):
            if take(path.parent.name):
                _run(path)


def _run(path: Path) -> None:
    request = json.loads(path.read_text())
    with open(request["log"], "ab") as log:
        job = subprocess.Popen(
            request["argv"], env=request["env"], stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
    Process.of_pid(job.pid).save(path.parent)
    job.wait()


if __name__ == "__main__":
    main()
