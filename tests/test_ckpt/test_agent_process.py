"""The agent as a process: alone, and several in one MPI world, killed for real."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_kit import content, lose
from mpi_kit import WAIT_S, AgentProcesses
from waiting import until

from ckpt.agent.process.launch import command
from ckpt.agent.rpc.client import AgentClient, Monitor
from ckpt.errors import AgentError


@pytest.fixture
def root() -> Iterator[Path]:
    """In memory, as the real directories are."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        yield Path(folder)


def test_alone_it_needs_no_mpi_and_gives_back_what_it_committed(root):
    with AgentProcesses(root, ["a"], 0) as agents:
        pid = agents.pids()["a"]
        for library in ("libtorch", "libmpi"):
            assert library not in Path(f"/proc/{pid}/maps").read_text()
        agents.workers[0].request("plan", timeout_s=WAIT_S)
        threads = [int(thread) for thread in os.listdir(f"/proc/{pid}/task")]
        until(lambda: all(os.getpriority(os.PRIO_PROCESS, thread) >= 10 for thread in threads), "a lower priority")
        agents.save(10, 0)
        os.kill(pid, signal.SIGTERM)  # Slurm sends it to every process of a step
        os.kill(pid, signal.SIGINT)
        agents.save(20, 1)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(AgentError, match=r"closed the connection|connection lost"):
            while agents.monitors[0].receive(WAIT_S):
                pass
        with pytest.raises(AgentError):
            agents.workers[0].request("plan", timeout_s=WAIT_S)
    with AgentProcesses(root, ["a"], 1) as agents:
        plan = agents.workers[0].request("plan", timeout_s=WAIT_S)
        assert (plan["step"], plan["tier"]) == (20, "memory")
        assert agents.read(0, 0) == content(0, 20)
        agents.monitors[0].shutdown()
        assert agents.process.wait(WAIT_S) == 0
        assert not agents.ram_dirs[0].joinpath("agent-1.sock").exists()


def test_in_an_mpi_world_a_lost_node_is_rebuilt_from_its_partner(root):
    with AgentProcesses(root, ["a", "b", "c"], 0) as agents:
        agents.save(10, 0)
        agents.save(20, 1)
        os.kill(agents.pids()["b"], signal.SIGKILL)
        for monitor in (agents.monitors[0], agents.monitors[2]):  # the others stay, and say what happened
            while (event := monitor.receive(WAIT_S)) is not None and event["event"] != "problem":
                pass
            assert event is not None and event["what"] == "the other agents are lost", agents.log()
        failed = re.compile(r"Process \[\[\d+,1\],(\w+)\] failed")
        named = until(lambda: set(failed.findall(agents.log())), "the log of the loss, which mpirun forwards")
        assert named == {"1"}, agents.log()
        assert agents.workers[0].request("plan", timeout_s=WAIT_S)["step"] is None
    lose(root, "b")
    with AgentProcesses(root, ["a", "x", "c"], 1) as agents:
        for worker in agents.workers:
            plan = worker.request("plan", timeout_s=WAIT_S)
            assert (plan["step"], plan["tier"], plan["skipped"]) == (20, "memory", [])
        assert [agents.read(1, rank) for rank in range(3)] == [content(rank, 20) for rank in range(3)]
        events = []
        while not any(event["event"] == "restore_plan" for event in events):
            event = agents.monitors[1].receive(WAIT_S)
            assert event is not None
            events.append(event)
        assert events[0]["event"] == "rebuilt" and events[0]["from_node"] == "c"
        assert events[-1]["sources"] == {"own": [0, 2], "partner@c": [1]}
        agents.monitors[2].stop()
        while (event := agents.monitors[0].receive(WAIT_S)) is not None and event["event"] != "stop_agreed":
            pass
        assert event is not None and event["boundary"] == 1
        for monitor in agents.monitors:
            monitor.shutdown()
        assert agents.process.wait(WAIT_S) == 0, agents.log()


def test_an_agent_that_has_written_the_newest_step_serves_those_that_are_asked_later(root, tmp_path):
    section = {"shared": {"path": str(tmp_path), "every_steps": 1000}}
    with AgentProcesses(root, ["a", "b"], 0, section) as agents:
        agents.save(10, 0)
        agents.monitors[0].release()
        until(lambda: list(tmp_path.glob("*/step-*/manifest.json")), "the last step in the shared directory")
        agents.monitors[1].release()
        assert agents.process.wait(WAIT_S) == 0, agents.log()
        assert "agents are lost" not in agents.log() and "leaving" not in agents.log()


@pytest.mark.parametrize(("redundancy", "lost"), [({"scheme": "xor"}, "c"), ({"scheme": "rs", "parity": 2}, "bd")])
def test_in_an_mpi_world_lost_nodes_are_rebuilt_from_parity(root, redundancy, lost):
    """Shards of several pieces, so that the sums are pipelined over the wire."""
    nodes, section, nbytes = ["a", "b", "c", "d"], {"redundancy": redundancy}, 7_000_001
    with AgentProcesses(root, nodes, 0, section) as agents:
        agents.save(10, 0, nbytes)
        agents.save(20, 1, nbytes)
    lose(root, *lost)
    nodes = [f"spare-{node}" if node in lost else node for node in nodes]
    with AgentProcesses(root, nodes, 1, section) as agents:
        for worker in agents.workers:
            plan = worker.request("plan", timeout_s=WAIT_S)
            assert (plan["step"], plan["tier"], plan["skipped"]) == (20, "memory", []), agents.log()
        assert [agents.read(1, rank) for rank in range(4)] == [content(rank, 20, nbytes) for rank in range(4)]
        for monitor in agents.monitors:
            monitor.shutdown()
        assert agents.process.wait(WAIT_S) == 0, agents.log()


_DYING = """
import functools, importlib, os, runpy, signal, sys
module, owner, method, before = sys.argv[1].split(":")
owner = getattr(importlib.import_module(module), owner)
real, left = getattr(owner, method), [int(before)]
@functools.wraps(real)
def dying(*args, **more):
    if any(getattr(value, "step", None) == 20 for value in (*args, *more.values())):
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
    return real(*args, **more)
setattr(owner, method, dying)
sys.argv[1:] = []
runpy.run_module("ckpt.agent", run_name="__main__")
"""


def dying(stage: str, calls_before: int = 0) -> list[str]:
    """The command line of an agent that is killed at a call for step 20."""
    return [sys.executable, "-c", _DYING, f"{stage}:{calls_before}", "ckpt.agent"]


@pytest.mark.parametrize(
    ("redundancy", "stage"),
    [
        ({"scheme": "partner"}, "ckpt.agent.exchange:Exchange:_on_shard_bytes"),
        ({"scheme": "xor"}, "ckpt.agent.protect.gather_sum:Sums:_on_parts"),
        ({"scheme": "rs", "parity": 2}, "ckpt.agent.protect.node:ProtectNode:_on_lengths"),
        ({"scheme": "rs", "parity": 2}, "ckpt.agent.protect.gather_sum:Sums:_on_parts"),
    ],
    ids=lambda value: str(value).rpartition(":")[2],
)
def test_an_agent_killed_while_redundancy_is_made_costs_that_save_and_no_older_one(root, redundancy, stage):
    """It dies with its node; all others have sealed step 20 and never commit it, and step 10 is restored."""
    nodes, section, nbytes = ["a", "b", "c", "d"], {"redundancy": redundancy}, 2_000_001
    with AgentProcesses(root, nodes, 0, section, {"b": dying(stage)}) as agents:
        agents.save(10, 0, nbytes)
        agents.seal(20, 1, nbytes)
        for node in (0, 2, 3):
            events = []
            while not any(event["event"] == "world_lost" for event in events):
                fresh = agents.workers[node].events(WAIT_S)
                assert fresh, agents.log()
                events += fresh
            assert not any(event["event"] == "committed" and event["step"] == 20 for event in events)
        assert "b" not in agents.pids()
        assert all((root / node / "own-0-1.json").exists() for node in nodes)
    lose(root, "b")
    with AgentProcesses(root, ["a", "x", "c", "d"], 1, section) as agents:
        for worker in agents.workers:
            plan = worker.request("plan", timeout_s=WAIT_S)
            assert (plan["step"], plan["tier"], plan["skipped"][0]["step"]) == (10, "memory", 20), agents.log()
        assert [agents.read(1, rank) for rank in range(4)] == [content(rank, 10, nbytes) for rank in range(4)]


XOR, RS = {"scheme": "xor"}, {"scheme": "rs", "parity": 2}
SUM, SERVE = (
    "ckpt.agent.protect.gather_sum:Sums:pull",
    "ckpt.agent.protect.gather_sum:Sums:_own",
)  # in whichever part of a sum


@pytest.mark.parametrize(
    ("redundancy", "killed", "stage", "with_its_node", "restored"),
    [
        (XOR, "x", SUM, False, (20, "memory")),
        (XOR, "c", SERVE, False, (20, "memory")),
        (XOR, "c", SERVE, True, (10, "shared")),
        (XOR, "a", SERVE, False, (20, "memory")),
        (RS, "x", SUM, True, (20, "memory")),
        (RS, "c", SERVE, True, (20, "memory")),
    ],
    ids=lambda value: value.rpartition(":")[2] if isinstance(value, str) else str(value),
)
def test_an_agent_killed_in_the_middle_of_a_rebuild_leaves_what_the_next_attempt_needs(
    root, redundancy, killed, stage, with_its_node, restored
):
    """x stands in for the lost b. No survivor hands out a step meanwhile; one loss more is more than XOR survives."""
    section = {"redundancy": redundancy, "shared": {"path": str(root / "shared"), "every_steps": 10_000}}
    nbytes = 2_000_001
    with AgentProcesses(root, ["a", "b", "c", "d"], 0, section) as agents:
        agents.save(10, 0, nbytes, flush=True)
        for worker in agents.workers:
            worker.request("await_saves", timeout_s=WAIT_S)
        agents.save(20, 1, nbytes)
    lose(root, "b")
    nodes = ["a", "x", "c", "d"]
    with AgentProcesses(root, nodes, 1, section, {killed: dying(stage, calls_before=1)}) as agents:
        for node, worker in zip(nodes, agents.workers, strict=True):
            with pytest.raises(AgentError, match="agent-1.sock: " if node == killed else "no restore could be agreed"):
                worker.request("plan", timeout_s=WAIT_S)
        assert killed not in agents.pids()
    if with_its_node:
        lose(root, killed)
        nodes = [f"spare-{node}" if node == killed else node for node in nodes]
    with AgentProcesses(root, nodes, 2, section) as agents:
        for worker in agents.workers:
            plan = worker.request("plan", timeout_s=WAIT_S)
            assert (plan["step"], plan["tier"]) == restored, agents.log()
            assert [skipped["step"] for skipped in plan["skipped"]] == ([20] if restored[0] == 10 else [])
            assert all("no rebuild from the parity of a, b, c, d" in skipped["reason"] for skipped in plan["skipped"])
        assert [agents.read(1, rank) for rank in range(4)] == [content(rank, plan["step"], nbytes) for rank in range(4)]
        agents.save(30, 0, nbytes)


def test_it_leaves_when_the_process_that_started_it_has_ended(root):
    agents = AgentProcesses(root, ["a"], 0)
    env = {**agents._env, "HOLDFAST_NODE": "a", "HOLDFAST_RAM_DIR": str(root / "a")}
    starter = f"import subprocess, time; subprocess.Popen({command()!r}); time.sleep(60)"
    parent = subprocess.Popen([sys.executable, "-c", starter], env=env, stderr=subprocess.DEVNULL)
    try:
        with Monitor.connect(root / "a", 0, WAIT_S) as monitor:
            parent.kill()
            with pytest.raises(AgentError, match="closed the connection"):
                while monitor.receive(WAIT_S):
                    pass
    finally:
        parent.kill()
        parent.wait()


def test_a_bad_environment_is_one_line_and_exit_code_1(root):
    done = subprocess.run(
        command(), env={"PATH": "/usr/bin"}, capture_output=True, text=True, check=False, timeout=WAIT_S
    )
    assert done.returncode == 1
    assert done.stderr.startswith("ckpt.agent: environment: HOLDFAST_") and done.stderr.count("\n") == 1


def test_a_client_without_an_agent_names_the_socket_and_the_deadline(tmp_path):
    with pytest.raises(AgentError, match=r"agent-3\.sock: no connection within 0\.1 s"):
        Monitor.connect(tmp_path, 3, 0.1)
    with pytest.raises(AgentError, match=r"x\.sock: no connection"):
        AgentClient.connect(tmp_path / "x.sock", rank=0, local_rank=0, timeout_s=0.1)


_IMPATIENT = """
import runpy, sys
from ckpt import timeouts
for pair in sys.argv.pop(1).split(","):
    name, _, value = pair.partition("=")
    timeouts.AgentDeadlines.__init__.__kwdefaults__[name] = float(value)
runpy.run_module("ckpt.agent", run_name="__main__")
"""


def impatient(**deadlines: float) -> list[str]:
    """The command line of an agent with other deadlines."""
    given = ",".join(f"{name}={value}" for name, value in deadlines.items())
    return [sys.executable, "-c", _IMPATIENT, given, "ckpt.agent"]


def late(path: Path) -> list[str]:
    """The command line of an agent that does not start before a file is there."""
    return ["sh", "-c", f'until [ -e {path} ]; do sleep 0.1; done; exec "$@"', "sh", *command()]


def test_a_sigterm_while_agents_come_up_ends_none_of_them(root: Path) -> None:
    """As at a preemption: Slurm sends it to every process of the job."""
    agents = AgentProcesses(root, ["a", "b"], 0, programs={"b": late(root / "go")})

    def preempt() -> None:
        pid = until(lambda: agents.pids().get("a"), "the first agent")
        program = Path(f"/proc/{pid}/cmdline")
        until(lambda: program.read_text().startswith(sys.executable), "the end of the shell that starts it")
        until(lambda: os.kill(pid, signal.SIGTERM) or "MPI" in Path(f"/proc/{pid}/maps").read_text(), "MPI_Init")
        os.kill(pid, signal.SIGTERM)
        (root / "go").touch()

    preempting = threading.Thread(target=preempt)
    preempting.start()
    with agents:
        preempting.join()
        agents.save(10, 0)


@pytest.mark.parametrize(
    ("deadlines", "signalled", "said"),
    [
        ({"world_s": 3}, False, "waited 3 s for agents of a, b to meet"),
        ({"last_s": 1}, True, "have not come together within 1 s of a SIGTERM"),
    ],
    ids=["no answer", "SIGTERM"],
)
def test_an_agent_whose_peer_does_not_come_leaves(
    root: Path, deadlines: dict[str, float], signalled: bool, said: str
) -> None:
    """It waits within MPI_Init. srun sends SIGTERM where it sees that the other has died."""
    agents = AgentProcesses(root, ["a", "b"], 0, programs={"a": impatient(**deadlines), "b": late(root / "never")})
    agents.start()
    try:
        if signalled:
            pid = until(lambda: agents.pids().get("a"), "the first agent")
            until(lambda: "MPI" in Path(f"/proc/{pid}/maps").read_text(), "MPI_Init")
            os.kill(pid, signal.SIGTERM)
        until(lambda: said in agents.log(), said)
        until(lambda: "a" not in agents.pids(), "its end")
    finally:
        agents.close()


def test_an_agent_that_the_others_do_not_leave_with_leaves_alone(root: Path) -> None:
    with AgentProcesses(root, ["a", "b"], 0, programs={"a": impatient(leave_s=1)}) as agents:
        os.kill(agents.pids()["b"], signal.SIGSTOP)
        agents.monitors[0].shutdown(WAIT_S)
        until(lambda: "a" not in agents.pids(), "the agent's end")
        until(lambda: "waited 1 s for the other agents to leave" in agents.log(), "its reason, which mpirun forwards")
