"""Measures what it costs to look at a large job: `status --watch` on 1,024 nodes, and the report of a month.

    .venv/bin/python benchmarks/observe.py [--nodes 1024] [--events 100000] [--seconds 30]

The jobs are simulated records. The screen is that of the command itself, on a terminal of its own of 200 columns, while
the record grows and every node's step changes as a supervisor writes them.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import pty
import random
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from pathlib import Path
from typing import Any

from launcher.history.steps import NodeSteps

HOLDFAST = [sys.executable, "-m", "launcher"]
STEP_S, EVERY = 1.0, 5  # of the watched job: seconds of a step, steps between two saves


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nodes", type=int, default=1024)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=30.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_STATE_HOME"] = f"{folder}/state"
        print(watched(Path(folder) / "watched", arguments.nodes, arguments.seconds))
        print(reported(Path(folder) / "reported", arguments.events))


def watched(folder: Path, nodes: int, seconds: float) -> str:
    """The share of a core that the screen of a job takes, its start left out."""
    names = [f"gpu-{number:04}" for number in range(nodes)]
    record(folder, [
        event(0, "job_start", run_id="slurm-c-8", nodes_requested=nodes, spares=16, cluster="local"),
        event(1, "attempt_start", attempt=0, nodes=names, spares=[f"spare-{n}" for n in range(16)], rung="start"),
        event(5, "first_step", attempt=0, step=1, seconds=4.0),
    ])  # fmt: skip
    ends = threading.Event()
    trains = threading.Thread(target=train, args=(folder, names, ends))
    trains.start()
    terminal, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
    screen = subprocess.Popen([*HOLDFAST, "status", str(folder), "--watch"], stdin=child, stdout=child, stderr=child)
    drawn: list[bytes] = []
    threading.Thread(target=swallow, args=(terminal, drawn), daemon=True).start()
    try:
        time.sleep(5.0)  # its start
        drawn.clear()
        before_s, since_s = cpu_s(screen.pid), time.monotonic()
        time.sleep(seconds)
        share = (cpu_s(screen.pid) - before_s) / (time.monotonic() - since_s)
        times = b"".join(drawn).count(b"simulated")  # the job's name, in the first line
    finally:
        screen.kill()
        screen.wait()
        ends.set()
        trains.join()
        os.close(child)
    return f"status --watch, {nodes} nodes, 200 columns: {share:.1%} of a core, {times} screens in {seconds:g} s"


def train(folder: Path, names: list[str], ends: threading.Event) -> None:
    """Writes what a supervisor writes while a job trains."""
    step = 1
    while not ends.wait(STEP_S):
        step += 1
        if step % 2 == 0:
            NodeSteps(attempt=0, step=step, nodes={name: step - random.randrange(2) for name in names}).write(folder)
        if step % EVERY == 0:
            with (folder / "events.jsonl").open("a") as file:
                line = event(0, "commit", attempt=0, tier="memory", step=step, seconds=0.5, bytes=10**12)
                file.write(json.dumps(line | {"time": time.time()}) + "\n")


def reported(folder: Path, events: int) -> str:
    """The time and size of the report of a job with faults every few hours."""
    nodes = [f"gpu-{number:02}" for number in range(64)]
    found = [event(0, "job_start", run_id="slurm-c-9", nodes_requested=64, spares=2, cluster="local")]
    time_s, step, attempt = 10.0, 0, 0
    while len(found) < events:
        found.append(event(time_s, "attempt_start", attempt=attempt, nodes=nodes, spares=["s"], rung="workers"))
        found.append(event(time_s + 2, "restore", attempt=attempt, step=step, tier="memory", seconds=1.0))
        found.append(event(time_s + 9, "first_step", attempt=attempt, step=step + 1, seconds=9.0))
        for number in range(185):
            time_s, step = time_s + 25, step + 10
            tier = "shared" if number % 10 == 9 else "memory"
            found.append(event(time_s, "commit", attempt=attempt, tier=tier, step=step, seconds=0.5, bytes=10**11))
        found.append(event(time_s + 5, "fault", attempt=attempt, kind="node_lost", node=nodes[attempt % 64], step=step))
        found.append(event(time_s + 5, "attempt_end", attempt=attempt, outcome="fault", step=step))
        attempt, time_s = attempt + 1, time_s + 10
    record(folder, found[:events])
    page = folder / "report.html"
    since_s, before = time.monotonic(), os.times()
    subprocess.run([*HOLDFAST, "report", str(folder), "-o", str(page)], check=True, stdout=subprocess.DEVNULL)
    used = os.times()
    core_s = used.children_user + used.children_system - before.children_user - before.children_system
    took_s, size = time.monotonic() - since_s, page.stat().st_size / 1e6
    return f"report, {events} events, {attempt} attempts: {took_s:.1f} s, {core_s:.1f} s of CPU time, {size:.1f} MB"


def record(folder: Path, events: list[dict[str, Any]]) -> None:
    """A job's folder with these events, of which the last is now."""
    folder.mkdir(parents=True)
    begun_s = time.time() - events[-1]["time"]
    lines = (json.dumps(each | {"time": begun_s + each["time"]}) + "\n" for each in events)
    (folder / "events.jsonl").write_text("".join(lines))
    (folder / "job.json").write_text(json.dumps({"name": "simulated", "nodes": 64, "spares": 2}))


def event(time_s: float, name: str, **fields: Any) -> dict[str, Any]:
    return {"time": time_s, "event": name, "attempt": None, "node": None, "step": None, "seconds": None} | fields


def swallow(terminal: int, drawn: list[bytes]) -> None:
    """Reads what a program draws, until its terminal is closed."""
    with contextlib.suppress(OSError):
        while part := os.read(terminal, 1 << 16):
            drawn.append(part)


def cpu_s(pid: int) -> float:
    """CPU time of a process so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
