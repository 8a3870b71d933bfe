"""Agents forked from a node's template, with real processes: the shim, the template and the agent end in any order."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from agent_kit import NAMESPACE, RUN_ID, content, lose
from mpi_kit import WAIT_S, AgentProcesses
from waiting import until

from ckpt.agent.process.launch import PID_FILE, RESERVE, command, template
from ckpt.agent.process.shim import FORKED, SOCKET
from ckpt.agent.rpc.client import Monitor
from ckpt.errors import AgentError


@pytest.fixture
def root() -> Iterator[Path]:
    """In memory, as the real directories are."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        yield Path(folder)


class Node:
    """A node: its template, and agents that are started on it as mpirun or srun does."""

    def __init__(self, root: Path, name: str = "a") -> None:
        self.name, self.ram_dir, self.log = name, root / name, root / "log"
        self.ram_dir.mkdir(mode=0o700)
        self.template = self.start_template()
        self.starters: list[subprocess.Popen[bytes]] = []

    def start_template(self) -> subprocess.Popen[bytes]:
        env = os.environ | {"HOLDFAST_RAM_DIR": str(self.ram_dir)} | RESERVE
        process = subprocess.Popen(template(os.getpid()), env=env, stderr=self.log.open("ab"))
        until(lambda: self._answers() or process.poll() is not None, "the template")
        return process

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as connection:
            return connection.connect_ex(str(self.ram_dir / SOCKET)) == 0

    def start(self, argv: list[str] | None = None, **more: str) -> subprocess.Popen[bytes]:
        """What mpirun or srun would have started."""
        env = os.environ | {
            "HOLDFAST_RUN_ID": RUN_ID, "HOLDFAST_ROLE": "agent", "HOLDFAST_ATTEMPT": "3", "HOLDFAST_GENERATION": "2",
            "HOLDFAST_NODE": self.name, "HOLDFAST_NODES": self.name, "HOLDFAST_RANKS_PER_NODE": "1",
            "HOLDFAST_RAM_DIR": str(self.ram_dir), "HOLDFAST_CHECKPOINT": json.dumps({"namespace": NAMESPACE}),
        }  # fmt: skip
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                argv or command(from_template=True), env=env | more, cwd=self.ram_dir, stdout=log, stderr=log
            )
        self.starters.append(process)
        return process

    def agent(self) -> int:
        """The pid of the agent that listens."""
        with Monitor.connect(self.ram_dir, 3, WAIT_S) as monitor:
            return monitor.agent_pid

    def is_closed(self) -> bool:
        try:
            Monitor.connect(self.ram_dir, 3, 0.0).close()
        except AgentError:
            return True
        return False

    def end(self) -> None:
        for process in (self.template, *self.starters):
            process.kill()
            process.wait(WAIT_S)
        until(self.is_closed, "the agent's end")


@pytest.fixture
def node(root: Path) -> Iterator[Node]:
    node = Node(root)
    try:
        yield node
    finally:
        node.end()


def is_forked(node: Node, pid: int) -> bool:
    return pid not in (starter.pid for starter in node.starters)


def words(pid: int, name: str) -> list[str]:
    return Path(f"/proc/{pid}/{name}").read_text().strip("\0").split("\0")


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def caught(pid: int) -> int:
    """The signals that a process handles, a bit for each."""
    status = dict(line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(status["SigCgt"], 16)


def answered(monitor: Monitor) -> bool:
    """Whether the agent gives a sign of life, after what it tells of its own accord."""
    while (event := monitor.receive(WAIT_S)) is not None:
        if event == {"event": "pong"}:
            return True
    return False


def test_a_template_has_all_libraries_loaded_and_no_thread_and_only_its_user_reaches_it(node: Node) -> None:
    """The node's file system may be gone when an agent needs NumPy to rebuild a shard from parity."""
    pytest.importorskip("mpi4py")
    loaded = Path(f"/proc/{node.template.pid}/maps").read_text()
    assert "libmpi" in loaded and "_multiarray_umath" in loaded
    assert len(os.listdir(f"/proc/{node.template.pid}/task")) == 1
    assert stat.S_IMODE((node.ram_dir / SOCKET).stat().st_mode) == 0o600
    assert (node.ram_dir / SOCKET).stat().st_uid == os.getuid()


def test_a_forked_agent_is_what_its_shim_was_started_as(node: Node) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    argv = command(from_template=True)
    argv[2] = f"ulimit -S -n {soft - 1}; {argv[2]}"
    shim = node.start(argv, SOME_VALUE="1" * 200)
    pid = node.agent()
    assert pid != shim.pid and shim.poll() is None
    assert words(pid, "cmdline") == [sys.executable, *command()[-2:]] or words(pid, "cmdline") == command()[4:]
    environment = dict(word.split("=", 1) for word in words(pid, "environ"))
    own = {"HOLDFAST_ATTEMPT": "3", "HOLDFAST_GENERATION": "2", "HOLDFAST_ROLE": "agent", "SOME_VALUE": "1" * 200}
    assert own.items() <= environment.items() and RESERVE.keys().isdisjoint(environment)
    assert os.readlink(f"/proc/{pid}/cwd") == str(node.ram_dir)
    for descriptor in (1, 2):
        assert os.readlink(f"/proc/{pid}/fd/{descriptor}") == str(node.log)
    assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == (soft - 1, hard)
    until(lambda: os.getpriority(os.PRIO_PROCESS, pid) >= 10, "the agent's lower priority")
    assert (node.ram_dir / PID_FILE.format(pid=pid)).exists()


def test_an_environment_too_long_for_its_place_still_says_which_agent_it_is(node: Node) -> None:
    node.start(LONG="x" * 100_000, HOLDFAST_NODES="a," + ",".join(f"node{i:05}" for i in range(10_000)))
    until(lambda: len(list(node.ram_dir.glob("agent-*.pid"))) == 2, "the agent's own file")
    (pid,) = (int(file.stem[6:]) for file in node.ram_dir.glob("agent-*.pid") if is_forked(node, int(file.stem[6:])))
    environment = dict(word.split("=", 1) for word in words(pid, "environ"))
    assert environment["HOLDFAST_ATTEMPT"] == "3" and environment["HOLDFAST_RUN_ID"] == RUN_ID
    assert environment.keys().isdisjoint({"LONG", "HOLDFAST_NODES"})


def test_a_shim_ends_as_its_agent_does(node: Node) -> None:
    shim = node.start()
    with Monitor.connect(node.ram_dir, 3, WAIT_S) as monitor:
        monitor.shutdown()
    assert shim.wait(WAIT_S) == 0
    assert node.start(HOLDFAST_ATTEMPT="x").wait(WAIT_S) == 1
    assert "ckpt.agent: environment: HOLDFAST_ATTEMPT" in node.log.read_text()
    shim = node.start()
    os.kill(node.agent(), signal.SIGKILL)
    assert shim.wait(WAIT_S) == -signal.SIGKILL


def test_an_agent_ends_with_its_shim(node: Node) -> None:
    shim = node.start()
    pid = node.agent()
    shim.kill()
    until(lambda: not Path(f"/proc/{pid}").exists(), "the agent's end")


def test_an_agent_ends_with_whatever_started_its_shim(node: Node) -> None:
    launcher = node.start(["sh", "-c", '"$@" & wait', "sh", *command(from_template=True)])
    pid = node.agent()
    launcher.kill()
    until(lambda: not Path(f"/proc/{pid}").exists(), "the agent's end")


def test_an_agent_outlives_its_template_and_the_next_starts_without_one(node: Node) -> None:
    shim = node.start()
    pid = node.agent()
    node.template.kill()
    node.template.wait(WAIT_S)
    with Monitor.connect(node.ram_dir, 3, WAIT_S) as monitor:
        monitor.ping()
        assert answered(monitor)
        assert monitor.agent_pid == pid
        monitor.shutdown()
    assert shim.wait(WAIT_S) == 0
    plain = node.start()
    assert node.agent() == plain.pid
    plain.kill()
    until(node.is_closed, "the agent's end")
    node.template = node.start_template()  # where the first has left its socket
    node.start()
    assert is_forked(node, node.agent())


def test_a_template_ends_with_its_runner(root: Path) -> None:
    (root / "a").mkdir(mode=0o700)
    code = (
        "import os, subprocess, sys; p = subprocess.Popen(sys.argv[1:] + [str(os.getpid())]); print(p.pid, flush=True)"
    )
    runner = [sys.executable, "-c", f"{code}; p.wait()", *template(0)[:-1]]
    env = os.environ | {"HOLDFAST_RAM_DIR": str(root / "a")} | RESERVE
    with subprocess.Popen(runner, stdout=subprocess.PIPE, env=env) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        until((root / "a" / SOCKET).exists, "the template")
        process.kill()
        until(lambda: not Path(f"/proc/{pid}").exists(), "the template's end")


@pytest.mark.parametrize("when", ["another has taken its place", "the directory is removed"])
def test_a_template_that_is_not_found_any_more_ends(node: Node, when: str) -> None:
    first = node.template
    if when == "another has taken its place":
        node.template = node.start_template()
    else:
        (node.ram_dir / SOCKET).unlink()
    assert first.wait(WAIT_S) == 0


def test_a_template_passes_over_connections_that_say_nothing_or_nonsense(node: Node) -> None:
    with suppress(OSError), socket.socket(socket.AF_UNIX) as silent, socket.socket(socket.AF_UNIX) as wrong:
        for connection in (silent, wrong):
            connection.connect(str(node.ram_dir / SOCKET))
        wrong.sendall(b"\xff" * 100)
        node.start()
        assert is_forked(node, node.agent())
        wrong.settimeout(WAIT_S)
        assert wrong.recv(1) == FORKED and wrong.recv(1) == b""
    assert node.template.poll() is None


@pytest.mark.parametrize("name", ["LD_LIBRARY_PATH", "PYTHONPATH", "LD_PRELOAD"])
def test_an_agent_that_would_load_other_libraries_is_not_forked(node: Node, name: str) -> None:
    started = node.start(**{name: "/nowhere" if name != "LD_PRELOAD" else ""})
    assert node.agent() == started.pid


def stopped(node: Node, started: subprocess.Popen[bytes]) -> None:
    """The template never answers."""


def _opened(pid: int) -> str:
    """What a process has opened. A descriptor may be closed meanwhile."""
    found = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(descriptor))
    return " ".join(found)


def killed(node: Node, started: subprocess.Popen[bytes]) -> None:
    """The template is killed while the shim waits for its answer."""
    until(lambda: "shim.py" in Path(f"/proc/{started.pid}/cmdline").read_text(), "the shim")
    until(lambda: "socket:" in _opened(started.pid), "its request")
    node.template.kill()


@pytest.mark.parametrize("happens", [stopped, killed])
def test_a_shim_without_an_answer_becomes_the_agent(
    node: Node, happens: Callable[[Node, subprocess.Popen[bytes]], None]
) -> None:
    node.template.send_signal(signal.SIGSTOP)
    started = node.start()
    happens(node, started)
    assert node.agent() == started.pid
    node.template.send_signal(signal.SIGCONT)  # what it had yet to serve finds nobody waiting
    with Monitor.connect(node.ram_dir, 3, WAIT_S) as monitor:
        monitor.ping()
        assert answered(monitor) and monitor.agent_pid == started.pid


def test_a_stopped_template_does_not_hold_the_output_of_an_agent_that_has_ended(node: Node) -> None:
    node.template.send_signal(signal.SIGSTOP)
    argv = ["sh", "-c", '"$@" | cat >"$0"', str(node.log) + "-piped", *command(from_template=True)]
    started = node.start(argv)
    os.kill(node.agent(), signal.SIGKILL)
    started.wait(WAIT_S)  # as Slurm does, which ends no step while anything holds a task's output
    assert state_of(node.template.pid) == "T"


def test_a_shim_whose_forked_process_dies_before_it_answers_becomes_the_agent(root: Path) -> None:
    node = Node(root)
    node.template.kill()
    node.template.wait(WAIT_S)
    (node.ram_dir / SOCKET).unlink()
    with socket.socket(socket.AF_UNIX) as dying:
        dying.bind(str(node.ram_dir / SOCKET))
        dying.listen()
        started = node.start()
        connection, _ = dying.accept()
        connection.sendall(FORKED)
        connection.recv(8)
        connection.close()
        try:
            assert node.agent() == started.pid
        finally:
            node.end()


def test_a_sigterm_of_the_shim_reaches_an_agent_that_comes_up(node: Node) -> None:
    first = node.start()
    node.agent()
    second = node.start()  # waits for the memory directory

    until(lambda: caught(second.pid) >> (signal.SIGTERM - 1) & 1, "the shim")
    second.terminate()
    until(lambda: "SIGTERM: the agents have" in node.log.read_text(), "the agent's word of the signal")
    assert first.poll() is None and second.poll() is None


def test_in_an_mpi_world_of_forked_agents_a_lost_node_is_rebuilt(root: Path) -> None:
    nodes = [Node(root, name) for name in "abc"]
    spare = None
    try:
        programs = {node.name: command(from_template=True) for node in nodes}
        with AgentProcesses(root, ["a", "b", "c"], 0, programs=programs) as agents:
            parents = {
                name: int(words(pid, "stat")[0].rpartition(")")[2].split()[1]) for name, pid in agents.pids().items()
            }
            assert parents == {node.name: node.template.pid for node in nodes}
            agents.save(10, 0)
            agents.save(20, 1)
            os.kill(agents.pids()["b"], signal.SIGKILL)
            for monitor in (agents.monitors[0], agents.monitors[2]):  # the others stay, and say what happened
                while (event := monitor.receive(WAIT_S)) is not None and event["event"] != "problem":
                    pass
                assert event is not None and event["what"] == "the other agents are lost", agents.log()
            assert agents.process.poll() is None
        lose(root, "b")
        spare = Node(root, "x")
        with AgentProcesses(root, ["a", "x", "c"], 1, programs=programs | {"x": programs["a"]}) as agents:
            for worker in agents.workers:
                assert worker.request("plan", timeout_s=WAIT_S)["step"] == 20, agents.log()
            assert [agents.read(1, rank) for rank in range(3)] == [content(rank, 20) for rank in range(3)]
            for monitor in agents.monitors:
                monitor.shutdown()
            assert agents.process.wait(WAIT_S) == 0, agents.log()
    finally:
        for node in (*nodes, *([spare] if spare else [])):
            node.end()
