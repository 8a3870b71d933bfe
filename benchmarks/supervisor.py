"""CPU time, memory and latencies of a real supervisor of thousands of nodes, whose runners are connections only.

    python benchmarks/supervisor.py [--nodes 1024 4096] [--seconds 10] [--json]

All runners are in two processes. They send what real runners send: hello, two heartbeats a second, started, killed. On
a machine with few cores they take CPU time from the supervisor, so the latencies are upper bounds. The CPU time is that
of the supervisor alone.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import resource
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.clusters.local.cluster import LocalCluster
from launcher.connections.channel import Channel, ChannelError, connect
from launcher.history.events import EventLog, read_events
from launcher.job.jobfile import JobSpec
from launcher.leadership.terms import Term, claim, newest
from launcher.runner.runner import HEARTBEAT_S
from launcher.supervisor.folder import make_folders, prepare, read_secret
from launcher.supervisor.supervisor import Supervisor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "test_launcher"))
from talkers import heartbeat

CLIENT_PROCESSES = 2
SPARES = 2  # one for each fault that is made
DEADLINE_S = 60.0
_CONNECTING_AT_ONCE = 100  # by one process; the supervisor allows 256 handshakes at once from one address


class Fleet(LocalCluster):
    """Simulated runners: connections from a few processes.

    Args:
        attempt: whose workers run on all nodes; None if none do.
    """

    def __init__(self, spec: JobSpec, job_dir: Path, attempt: int | None = None) -> None:
        super().__init__(spec, job_dir)
        self._attempt = attempt
        self._processes: list[Any] = []
        self._pipes: list[Any] = []

    async def start_runners(self, nodes: list[str], environment: Mapping[str, str]) -> None:
        self.connect(nodes, int(environment["HOLDFAST_SUPERVISOR"].rpartition(":")[2]))

    def connect(self, nodes: Sequence[str], port: int) -> None:
        """Starts runners, which connect to the supervisor at this port."""
        secret = read_secret(self._job_dir)
        context = multiprocessing.get_context("spawn")
        for index in range(CLIENT_PROCESSES):
            ours, theirs = context.Pipe()
            own = nodes[index::CLIENT_PROCESSES]
            process = context.Process(target=_run_clients, args=(own, port, secret, self._attempt, theirs), daemon=True)
            process.start()
            self._processes.append(process)
            self._pipes.append(ours)

    async def close(self) -> None:
        for process in self._processes:
            process.terminate()
        await super().close()

    def ask(self, what: str, node: str | None = None) -> Any:
        """Sends a request to the process of a node, or to the first process; returns its reply."""
        pipe = self._pipes[0 if node is None else self.nodes.index(node) % CLIENT_PROCESSES]
        pipe.send((what, node))
        if not pipe.poll(DEADLINE_S):
            raise TimeoutError(f"the process of the simulated runners did not answer {what!r} within {DEADLINE_S:g} s")
        return pipe.recv()

    def last_start_s(self) -> float:
        """The time at which the last runner received the newest order to start, in seconds since the epoch."""
        latest = 0.0
        for pipe in self._pipes:
            pipe.send(("last_start", None))
            latest = max(latest, pipe.recv() if pipe.poll(DEADLINE_S) else 0.0)
        return latest


class _Clients:
    """Many runners in one process."""

    def __init__(self, nodes: tuple[str, ...], port: int, secret: bytes, attempt: int | None) -> None:
        self._nodes, self._port, self._secret = nodes, port, secret
        self._channels: dict[str, Channel] = {}
        self._attempts = {} if attempt is None else dict.fromkeys(nodes, attempt)
        self._muted: set[str] = set()
        self._last_start_s = 0.0

    async def run(self, pipe: Any) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(pipe.fileno(), lambda: pipe.send(self._answer(*pipe.recv())))
        turn = asyncio.Semaphore(_CONNECTING_AT_ONCE)
        await asyncio.gather(*(self._runner(node, index, turn) for index, node in enumerate(self._nodes)))

    async def _runner(self, node: str, index: int, turn: asyncio.Semaphore) -> None:
        async with turn:
            hello = {
                "op": "hello",
                "node": node,
                "pid": 1,
                "problem": None,
                "warm": True,
                "port": 20000,
                "restart_count": 0,
                "allocation": "local",
                "addresses": [],
                "attempt": self._attempts.get(node),
            }
            channel, message = await self._connect(hello)
        self._channels[node] = channel
        beat = asyncio.create_task(self._beat(node, channel, index / len(self._nodes) * HEARTBEAT_S))
        with contextlib.suppress(ChannelError):
            while message["op"] != "leave":
                if message["op"] == "start":
                    self._last_start_s = time.time()
                    self._attempts[node] = message["attempt"]
                    channel.send({"op": "started", "attempt": message["attempt"], "pids": list(range(8))})
                elif message["op"] == "kill":
                    channel.send({"op": "killed", "attempt": message["attempt"], "step": None, "left": [], "held": ""})
                message = await channel.receive()
        beat.cancel()
        await channel.close()

    async def _connect(self, hello: dict[str, Any]) -> tuple[Channel, Any]:
        """Tries again as a runner does: the supervisor may be too busy to answer in time."""
        while True:
            with contextlib.suppress(ChannelError):
                return await connect("127.0.0.1", self._port, self._secret, hello)
            await asyncio.sleep(HEARTBEAT_S)

    async def _beat(self, node: str, channel: Channel, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        step = 0
        while True:
            step += 1
            if node not in self._muted:
                told = {"step": 100_000 + step, "slowest": 100_000 + step, "activity": step}
                channel.send(heartbeat(attempt=self._attempts.get(node), **told))
            await asyncio.sleep(HEARTBEAT_S)

    def _answer(self, what: str, node: str | None) -> Any:
        if what == "last_start":
            return self._last_start_s
        if node is None:
            raise ValueError(f"{what!r} of no node")
        if what == "bytes":
            return _tcp_bytes(self._channels[node])
        if what == "close":
            self._channels[node].abort()
        elif what == "mute":
            self._muted.add(node)
        return time.time()


def _run_clients(nodes: tuple[str, ...], port: int, secret: bytes, attempt: int | None, pipe: Any) -> None:
    allow_files(len(nodes) + 100)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(_Clients(nodes, port, secret, attempt).run(pipe))


def _tcp_bytes(channel: Channel) -> int:
    """The payload bytes of a connection in both directions, counted by the kernel (tcp_info in linux/tcp.h)."""
    raw = channel._writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)
    acked, received = struct.unpack_from("QQ", raw, 120)
    return int(acked) + int(received)


def allow_files(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(count, hard)), hard))


def measure(count: int, seconds: float) -> dict[str, float]:
    """One job of `count` nodes: connect, train for `seconds`, lose a node by a closed connection and one by silence."""
    with tempfile.TemporaryDirectory() as folder:
        job_dir = Path(folder) / "job"
        make_folders(job_dir)
        spec = JobSpec(name="benchmark", script=Path(__file__), nodes=count - SPARES, spares=SPARES)
        prepare(spec, job_dir)
        events = EventLog(job_dir / "events.jsonl")
        fleet = Fleet(spec, job_dir)
        figures: dict[str, float] = {"nodes": count}
        driver = threading.Thread(target=_drive, args=(fleet, job_dir, seconds, figures), daemon=True)
        driver.start()
        outcome = asyncio.run(Supervisor(spec, job_dir, fleet, events).run())
        driver.join(DEADLINE_S)
        events.close()
        if outcome.name != "cancelled" or "silence_noticed_s" not in figures:
            raise RuntimeError(f"{count} nodes: the job ended as {outcome.name}: {outcome.reason}; got {figures}")
    return figures


def measure_take_over(count: int) -> dict[str, float]:
    """Takes over a job that trains on `count` nodes; the seconds until all its runners have connected."""
    with tempfile.TemporaryDirectory() as folder:
        job_dir = Path(folder) / "job"
        make_folders(job_dir)
        spec = JobSpec(name="benchmark", script=Path(__file__), nodes=count)
        prepare(spec, job_dir)
        claim(job_dir, Term(number=1, run_id="run", node=None, host="127.0.0.1", port=1, pid=1))
        events = EventLog(job_dir / "events.jsonl")
        fleet = Fleet(spec, job_dir, attempt=0)
        events.append("job_start")
        for node in fleet.nodes:
            events.append("node_ready", node=node, warm=True)
        events.append("attempt_start", attempt=0, nodes=list(fleet.nodes), spares=[], rung="start")
        events.append("workers_started", attempt=0, seconds=1.0)
        figures: dict[str, float] = {}
        driver = threading.Thread(target=_drive_take_over, args=(fleet, job_dir, figures), daemon=True)
        driver.start()
        asyncio.run(Supervisor(spec, job_dir, fleet, events, take_over=1).run())
        driver.join(DEADLINE_S)
        events.close()
        lost = [event for event in read_events(job_dir / "events.jsonl") if event["event"] in ("node_out", "fault")]
        if lost or not figures:
            raise RuntimeError(f"{count} nodes: a take-over loses {len(lost)} of them: {lost[:1]}")
    return figures


def _drive_take_over(fleet: Fleet, job_dir: Path, figures: dict[str, float]) -> None:
    """Runs in a thread: lets the runners connect to the new supervisor, then ends the job with a user's SIGINT."""
    try:
        begun = _event(job_dir, "takeover")
        term = newest(job_dir)
        if term is None:
            raise RuntimeError("a take-over without a term")
        fleet.connect(fleet.nodes, term.port)
        last = _wait(lambda: _last_return(job_dir, len(fleet.nodes)), "return of all runners")
        figures["take_over_s"] = last["time"] - begun["time"]
    finally:
        os.kill(os.getpid(), signal.SIGINT)


def _last_return(job_dir: Path, count: int) -> dict[str, Any] | None:
    """The event of the last of `count` runners that connect after a take-over, or of a node that is lost; None before.

    The events are parsed once: to parse so many takes long, and this process also supervises.
    """
    path = job_dir / "events.jsonl"
    written = path.read_bytes()
    if written.count(b"node_ready") < 2 * count and b"node_out" not in written:
        return None
    return [event for event in read_events(path) if event["event"] in ("node_ready", "node_out")][-1]


def _drive(fleet: Fleet, job_dir: Path, seconds: float, figures: dict[str, float]) -> None:
    """Runs in a thread: measures, closes or silences a connection, then ends the job with a user's SIGINT."""
    try:
        begun = _event(job_dir, "job_start")
        first = _event(job_dir, "attempt_start", attempt=0)
        figures["all_connected_s"] = first["time"] - begun["time"]
        _event(job_dir, "workers_started", attempt=0)
        figures["first_attempt_sent_s"] = fleet.last_start_s() - first["time"]
        some = first["nodes"]
        _watch_steady_state(fleet, some[0], seconds, figures)
        for attempt, (what, figure) in enumerate((("close", "close_noticed_s"), ("mute", "silence_noticed_s")), 1):
            made_s = fleet.ask(what, some[-attempt])
            started = _event(job_dir, "attempt_start", attempt=attempt)
            fault = _event(job_dir, "fault", attempt=attempt - 1)
            figures[figure] = fault["time"] - made_s
            _event(job_dir, "workers_started", attempt=attempt)
            figures["next_attempt_sent_s"] = fleet.last_start_s() - fault["time"]
            figures["of_it_sending_s"] = fleet.last_start_s() - started["time"]
    finally:
        os.kill(os.getpid(), signal.SIGINT)


def _watch_steady_state(fleet: Fleet, node: str, seconds: float, figures: dict[str, float]) -> None:
    cpu_s, bytes_before, begun_s = time.process_time(), fleet.ask("bytes", node), time.monotonic()
    time.sleep(seconds)  # a rate is measured over this time
    elapsed_s = time.monotonic() - begun_s
    figures["cpu_share"] = (time.process_time() - cpu_s) / elapsed_s
    figures["bytes_per_node_s"] = (fleet.ask("bytes", node) - bytes_before) / elapsed_s
    figures["memory_bytes"] = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _event(job_dir: Path, name: str, **fields: Any) -> dict[str, Any]:
    """Waits for an event of the job."""

    def found() -> dict[str, Any] | None:
        events = read_events(job_dir / "events.jsonl")
        return next((e for e in events if e["event"] == name and fields.items() <= e.items()), None)

    return _wait(found, f"event {name} {fields}")


def _wait(found: Callable[[], dict[str, Any] | None], what: str) -> dict[str, Any]:
    deadline_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline_s:
        result = found()
        if result is not None:
            return result
        time.sleep(0.2)
    raise TimeoutError(f"no {what} within {DEADLINE_S:g} s")


_COLUMNS = (
    ("nodes", "nodes", "{:.0f}"),
    ("all connected s", "all_connected_s", "{:.2f}"),
    ("cores", "cpu_share", "{:.2f}"),
    ("memory MiB", "memory_bytes", "{:.0f}"),
    ("B/s a node", "bytes_per_node_s", "{:.0f}"),
    ("closed: noticed s", "close_noticed_s", "{:.3f}"),
    ("silent: noticed s", "silence_noticed_s", "{:.2f}"),
    ("fault to last start s", "next_attempt_sent_s", "{:.2f}"),
    ("of it sending s", "of_it_sending_s", "{:.2f}"),
    ("take-over s", "take_over_s", "{:.2f}"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds of training to measure")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    allow_files(max(options.nodes) + 1000)
    rows = [measure(count, options.seconds) | measure_take_over(count) for count in options.nodes]
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    print("one supervisor, heartbeats twice a second")
    print("  ".join(title for title, _, _ in _COLUMNS))
    for row in rows:
        shown = row | {"memory_bytes": row["memory_bytes"] / 2**20}
        print("  ".join(form.format(shown[key]).rjust(len(title)) for title, key, form in _COLUMNS))


if __name__ == "__main__":
    main()
