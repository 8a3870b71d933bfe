"""Starts, finds, kills and connects the machines of a cluster. A machine is a set of Linux namespaces.

No file records which machines run. Every process of a cluster has the cluster's run directory in its environment, and
a machine's first process has PID 1 in its own PID namespace. Both are read from /proc.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from slurm.command import CommandRunner
from slurm.testbed.daemons import SYSTEM_PATH
from slurm.testbed.plan import ClusterPlan, TestbedError

RUN_DIR_VARIABLE = "HOLDFAST_CLUSTER_RUN_DIR"
BOOT_TIMEOUT_S = 20.0
NAMESPACES_READY = b"namespaces ready\n"  # a machine's first process writes this to stdout, then waits for LINK_READY
LINK_READY = b"network link ready\n"  # the answer, on stdin of the machine's first process
START_DAEMON = signal.SIGUSR1  # makes a machine's first process start its Slurm daemon again
_CODE_ROOT = Path(__file__).resolve().parents[2]


def add_bridge(plan: ClusterPlan, run: CommandRunner) -> None:
    """Make the cluster's network bridge and give the host an address on it."""
    _ip(plan, run, "link", "add", plan.bridge, "type", "bridge")
    _ip(plan, run, "address", "add", f"{plan.host_address}/24", "dev", plan.bridge)
    _ip(plan, run, "link", "set", plan.bridge, "up")


def start_machines(plan: ClusterPlan, machines: tuple[str, ...], run: CommandRunner) -> None:
    """Make the namespaces of all machines at the same time. Then give each machine its network link and let it boot.

    Raises:
        TestbedError: a machine's namespaces were not made within `BOOT_TIMEOUT_S`, or its first process ended.
    """
    with contextlib.ExitStack() as stack:
        starting = [(machine, stack.enter_context(_spawn(plan, machine))) for machine in machines]
        for machine, first_process in starting:
            _connect(plan, machine, first_process, run)


def kill_machine(plan: ClusterPlan, machine: str, run: CommandRunner) -> None:
    """Kill every process of a machine at once, as a power failure does. Its memory is lost, its disk stays."""
    pid = find_machine(plan, machine)
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(
        lambda: find_machine(plan, machine) is None, BOOT_TIMEOUT_S, f"{machine}: its processes did not end on SIGKILL"
    )
    _delete_link(plan.link(machine), run)


def remove_everything(plan: ClusterPlan, run: CommandRunner) -> None:
    """Kill all processes of a cluster and delete its network. The cluster may be only partly built."""

    def all_gone() -> bool:
        left = list(_processes(plan))
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left

    wait_until(all_gone, BOOT_TIMEOUT_S, f"cluster {plan.name}: its processes did not end on SIGKILL")
    for link in (*(plan.link(machine) for machine in plan.machines), plan.bridge):
        _delete_link(link, run)


def find_machine(plan: ClusterPlan, machine: str) -> int | None:
    """PID of a machine's first process in the host's PID namespace; None if the machine is not running."""
    return next((pid for pid in _processes(plan) if _is_first_process(pid, machine)), None)


def links(run: CommandRunner) -> dict[str, bool]:
    """The host's network links: name to whether the link is up."""
    return {link["ifname"]: "UP" in link["flags"] for link in json.loads(run(["ip", "-json", "link"]).stdout)}


def set_link(plan: ClusterPlan, machine: str, up: bool, run: CommandRunner) -> None:
    """Connect a machine to the network, or cut it off. Its connections stay open.

    Raises:
        TestbedError: the machine has no network link, because it has crashed.
    """
    if plan.link(machine) not in links(run):
        raise TestbedError(f"{machine} of cluster {plan.name} has no network link (crashed); restart it first")
    _ip(plan, run, "link", "set", plan.link(machine), "up" if up else "down")


def wait_until(condition: Callable[[], bool], timeout_s: float, or_else: str) -> None:
    """Wait until a condition holds.

    Raises:
        TestbedError: the condition did not hold within `timeout_s`. The message begins with `or_else`.
    """
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise TestbedError(f"{or_else} within {timeout_s:g} s")
        time.sleep(0.05)


def _spawn(plan: ClusterPlan, machine: str) -> subprocess.Popen[bytes]:
    """Start a machine's first process in new namespaces.

    The process waits for `LINK_READY` on stdin. It exits if this process dies before it sends that.
    """
    namespaces = ("unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork")
    first_process = (sys.executable, "-S", "-m", "slurm.testbed.machine", str(plan.run_dir), machine)
    with open(plan.log(machine), "ab") as log:
        return subprocess.Popen(
            ("setsid", "--fork", *namespaces, *first_process),
            env={**_marked(plan), "PYTHONPATH": str(_CODE_ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )


def _connect(plan: ClusterPlan, machine: str, starting: subprocess.Popen[bytes], run: CommandRunner) -> None:
    if starting.stdin is None or starting.stdout is None:
        raise TypeError(f"{machine}: stdin and stdout of its first process must be pipes")
    answered, _, _ = select.select([starting.stdout], [], [], BOOT_TIMEOUT_S)
    if not answered or starting.stdout.readline() != NAMESPACES_READY:
        raise TestbedError(f"{machine}: its namespaces were not made: {last_lines(plan.log(machine))}")
    pid = find_machine(plan, machine)
    if pid is None:
        raise TestbedError(f"{machine}: its first process has ended: {last_lines(plan.log(machine))}")
    link = plan.link(machine)
    peer = ("name", "eth0", "address", plan.mac(machine), "netns", str(pid))
    _ip(plan, run, "link", "add", link, "type", "veth", "peer", *peer)
    _ip(plan, run, "link", "set", link, "master", plan.bridge, "up")
    starting.stdin.write(LINK_READY)
    starting.stdin.flush()


def last_lines(log: Path, count: int = 5) -> str:
    """The last `count` lines of a log, joined by " | ", for an error message."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError as error:
        return f"{log} cannot be read ({error.strerror})"
    return " | ".join(line.strip() for line in lines[-count:]) or f"{log} is empty"


def _processes(plan: ClusterPlan) -> Iterator[int]:
    """PIDs of root's live processes that have the cluster's run directory in their environment."""
    wanted = f"{RUN_DIR_VARIABLE}={plan.run_dir}".encode()
    for entry in os.listdir("/proc"):
        # The process has ended meanwhile; or it has more privileges than we do, so we have not started it.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            if not entry.isdigit() or os.stat(f"/proc/{entry}").st_uid != 0:
                continue
            if wanted in Path("/proc", entry, "environ").read_bytes().split(b"\0"):
                yield int(entry)


def _is_first_process(pid: int, machine: str) -> bool:
    try:
        status = Path("/proc", str(pid), "status").read_text()
        arguments = Path("/proc", str(pid), "cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return False
    ids = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()
    return len(ids) > 2 and ids[-1] == "1" and machine.encode() in arguments


def _delete_link(link: str, run: CommandRunner) -> None:
    """Deletes both ends of a link, if they still exist: the kernel deletes the links of a dead machine as well."""
    done = run(["ip", "link", "delete", link], check=False)
    if done.returncode != 0 and link in links(run):
        raise TestbedError(f"network link {link} could not be deleted: {done.stderr.strip()}")


def _ip(plan: ClusterPlan, run: CommandRunner, *arguments: str) -> None:
    run(["ip", *arguments], env=_marked(plan))


def _marked(plan: ClusterPlan) -> dict[str, str]:
    return {"PATH": SYSTEM_PATH, "LANG": "C.UTF-8", RUN_DIR_VARIABLE: str(plan.run_dir)}
