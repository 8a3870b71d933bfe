"""The main job, watched: train on three nodes, lose one with its memory, come back from the peers' memory, finish.

Everything is real but the machine: each node is its own process group with its own memory directory on this host.
`make demo` runs this. It leaves runs/demo/: summary.json, and the job's folder with its events and logs.
"""

from __future__ import annotations

import json
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from holdfast import Executor, Torchrun
from launcher.clusters.local import kill_node
from launcher.history.events import read_events
from launcher.history.recovery import cold_start_s, recoveries
from launcher.progress import follow
from launcher.registry import find_job

FOLDER = Path("runs/demo")
SCRIPT = Path(__file__).resolve().parent / "train.py"
STEPS = 120
LOSE_AFTER_STEP = 40  # a node is lost once this step is committed


def main() -> int:
    console = Console(highlight=False)
    console.print("[bold]A small GPT on the standard library's source: 3 nodes + 1 spare, one machine[/bold]")
    shutil.rmtree(FOLDER, ignore_errors=True)
    executor = Executor(folder=FOLDER / "%j", cluster="local")
    executor.update_parameters(nodes=3, spares=1)
    checkpoint = {"namespace": "demo", "memory": {"every_steps": 5}, "redundancy": {"scheme": "partner"}}
    submitted_at = time.time()
    job = executor.submit(Torchrun(SCRIPT, "--steps", str(STEPS), name="demo", checkpoint=checkpoint))

    killer = Killer(job.paths.folder, console)
    killer.start()
    exit_code = follow(find_job(str(job.paths.folder)), console)
    killer.join()
    if exit_code:
        return exit_code
    if not killer.killed:
        console.print("[red]the job ended before a node could be lost: nothing was shown[/red]")
        return 1
    summary = summarise(job.paths.folder, killer.killed, submitted_at)
    (FOLDER / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    show(console, summary)
    return 0


class Killer(threading.Thread):
    """Waits for mid-training, then kills one node with its memory; ends with the job."""

    def __init__(self, job_dir: Path, console: Console) -> None:
        super().__init__(daemon=True)
        self.killed: dict[str, float] = {}  # node -> time, s since the epoch
        self._job_dir = job_dir
        self._console = console

    def run(self) -> None:
        nodes: list[str] = []
        while not self.killed:
            for event in read_events(self._job_dir / "events.jsonl"):
                nodes = event.get("nodes") or nodes
                if event["event"] == "job_end":
                    return
                if event["event"] == "commit" and event["step"] >= LOSE_AFTER_STEP and not self.killed:
                    self._kill(nodes[1])
            time.sleep(0.02)

    def _kill(self, node: str) -> None:
        self._console.print(
            f"[bold red]          killing {node}: SIGKILL to all its processes, its memory wiped[/bold red]"
        )
        self.killed[node] = time.time()
        kill_node(self._job_dir, node)


def summarise(job_dir: Path, killed: dict[str, float], submitted_at: float) -> dict[str, Any]:
    """What runs/demo/summary.json tells."""
    events = read_events(job_dir / "events.jsonl")
    recovery = recoveries(events, killed)[0]
    return {
        "failed_node": recovery.node,
        "step_lost": recovery.step_lost,
        "step_resumed": recovery.step_resumed,
        "restored_from": recovery.restored_from,
        "detect_s": recovery.detect_s,
        "workers_s": recovery.workers_s,
        "next_step_s": recovery.next_step_s,
        "cold_start_s": cold_start_s(events, submitted_at),
        **json.loads((job_dir / "final.json").read_text()),
    }


def show(console: Console, summary: dict[str, Any]) -> None:
    table = Table(box=None, show_header=False, padding=(0, 2))
    table.add_column(style="dim")
    next_step_s, cold_start = summary["next_step_s"], summary["cold_start_s"]
    for name, value in (
        ("failed node", summary["failed_node"]),
        ("step when it failed", summary["step_lost"]),
        ("step resumed", f"{summary['step_resumed']}, from {summary['restored_from']}"),
        ("failure to detection", f"{summary['detect_s']:.2f} s"),
        ("failure to workers started", f"{summary['workers_s']:.2f} s"),
        ("failure to next step", f"{next_step_s:.2f} s  ({next_step_s / cold_start:.0%} of the cold start)"),
        ("cold start", f"{cold_start:.2f} s"),
        ("final loss", f"{summary['final_loss']:.4f}  (state {summary['state_sha256'][:16]})"),
    ):
        table.add_row(name, str(value))
    console.print()
    console.print(table)
    console.print(f"\nall of it: {FOLDER}/summary.json")
    console.print("the same on Slurm: [bold]holdfast submit examples/gpt_stdlib/job.yaml[/bold]", end="")
    console.print("  (none here? as root: [bold]holdfast cluster up[/bold])")


if __name__ == "__main__":
    sys.exit(main())
