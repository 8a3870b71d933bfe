"""Trains on three nodes, loses one with its memory, and resumes from copies in the memory of the other nodes.

`make demo` runs this script. It starts `holdfast run demo.yaml` and kills all processes of one node. The nodes are
process groups on this host, each with its own memory directory. Results are in runs/demo/: summary.json, and the job's
folder with its events and logs.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

FOLDER = Path("runs/demo")
JOB_FILE = Path(__file__).resolve().parent / "demo.yaml"
LOST = "node1"
LOSE_AFTER_STEP = 40  # LOST is killed once this step is committed


def main() -> int:
    print("A small GPT on the standard library's source: 3 nodes + 1 spare, one machine")
    print(f"After step {LOSE_AFTER_STEP}, {LOST} is killed: SIGKILL to all its processes, its memory wiped", flush=True)
    shutil.rmtree(FOLDER, ignore_errors=True)
    submitted_at = time.time()
    holdfast = Path(sys.executable).with_name("holdfast")
    job = subprocess.Popen([holdfast, "run", JOB_FILE, "--folder", FOLDER / "%j"])
    try:
        killed_at = lose_node(job)
        exit_code = job.wait()
    except KeyboardInterrupt:  # the terminal sends SIGINT to the job too, which then ends
        return job.wait()
    if exit_code:
        return exit_code
    if killed_at is None:
        print(f"the job ended before step {LOSE_AFTER_STEP} was committed, so no node was killed; see {FOLDER}")
        return 1
    summary = summarise(submitted_at, killed_at)
    (FOLDER / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    show(summary)
    return 0


def lose_node(job: subprocess.Popen[bytes]) -> float | None:
    """Waits until step LOSE_AFTER_STEP is committed, then kills all processes of LOST and removes its memory.

    Returns:
        The time of the kill (s since the epoch); None if the job ended first.
    """
    while job.poll() is None:
        if any(event["event"] == "commit" and event["step"] >= LOSE_AFTER_STEP for event in events()):
            killed_at, run = time.time(), f"local-{job_folder().name}-"
            while processes := processes_of(LOST, run):
                for pid, memory in processes:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                    shutil.rmtree(memory, ignore_errors=True)
            return killed_at
        time.sleep(0.05)
    return None


def processes_of(node: str, run: str) -> list[tuple[int, str]]:
    """A node's live processes: the PID and memory directory of each, from Holdfast's environment variables."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # the process has ended, or belongs to another user
            variables = dict(item.split("=", 1) for item in path.read_text().split("\0") if "=" in item)
            if variables.get("HOLDFAST_NODE") == node and variables.get("HOLDFAST_RUN_ID", "").startswith(run):
                found.append((int(path.parent.name), variables["HOLDFAST_RAM_DIR"]))
    return found


def job_folder() -> Path:
    return next(FOLDER.glob("*/events.jsonl")).parent


def events() -> list[dict[str, Any]]:
    """The events of the job so far, from events.jsonl."""
    texts = [path.read_text() for path in FOLDER.glob("*/events.jsonl")]
    return [json.loads(line) for text in texts for line in text.split("\n")[:-1]]


def summarise(submitted_at: float, killed_at: float) -> dict[str, Any]:
    """The content of runs/demo/summary.json. Times are in seconds since the epoch, durations in seconds."""
    found = events()
    (fault,) = (event for event in found if event["event"] == "fault")
    first, second = ({event["event"]: event for event in found if event.get("attempt") == number} for number in (0, 1))

    def moment(attempt: dict[str, Any], name: str) -> float:
        return float(attempt["attempt_start"]["time"] + attempt[name]["seconds"])

    return {
        "failed_node": fault["node"],
        "step_lost": fault["step"],
        "step_resumed": second["restore"]["step"],
        "restored_from": second["restore"]["tier"],
        "detect_s": fault["time"] - killed_at,
        "workers_s": moment(second, "workers_started") - killed_at,
        "next_step_s": moment(second, "first_step") - killed_at,
        "cold_start_s": moment(first, "first_step") - submitted_at,
        **json.loads((job_folder() / "final.json").read_text()),
    }


def show(summary: dict[str, Any]) -> None:
    next_step_s, cold_start_s = summary["next_step_s"], summary["cold_start_s"]
    lines = {
        "failed node": summary["failed_node"],
        "step when it failed": summary["step_lost"],
        "step resumed": f"{summary['step_resumed']}, from {summary['restored_from']}",
        "failure to detection": f"{summary['detect_s']:.2f} s",
        "failure to workers started": f"{summary['workers_s']:.2f} s",
        "failure to next step": f"{next_step_s:.2f} s  ({next_step_s / cold_start_s:.0%} of the cold start)",
        "cold start": f"{cold_start_s:.2f} s",
        "final loss": f"{summary['final_loss']:.4f}  (state {summary['state_sha256'][:16]})",
    }
    print("\n" + "\n".join(f"  {name:<28}{value}" for name, value in lines.items()))
    print(f"\nall figures: {FOLDER}/summary.json")
    print("the same job on Slurm: holdfast submit examples/gpt_stdlib/job.yaml", end="")
    print("  (for a Slurm on this machine, as root: holdfast cluster up)")


if __name__ == "__main__":
    sys.exit(main())
