"""The first process of a machine of the testbed: `python -m slurm.testbed.machine RUN_DIR MACHINE`.

It runs in its own network, mount, UTS, IPC and PID namespaces. It gives the machine a host name, an IP address, its own
/proc, /dev/shm, /tmp and disk. It starts the machine's daemons and then reaps orphaned processes. To crash the machine
is to kill this process: the kernel then kills all its processes and removes its namespaces, mounts and network link.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from slurm.command import run
from slurm.testbed.daemons import daemon_environment, munged, slurm_daemon
from slurm.testbed.namespaces import LINK_READY, NAMESPACES_READY, START_DAEMON
from slurm.testbed.plan import ClusterPlan, load_plan
from slurm.testbed.view import barriers, needed_paths, view_script


def main(run_dir: Path, machine: str) -> None:
    """Set up the machine and run as its first process. Never returns."""
    os.umask(0o022)
    _handshake()
    plan = load_plan(run_dir)
    if plan is None:
        sys.exit(f"machine {machine}: {run_dir} has no plan.json; `cluster down` has removed the cluster meanwhile")
    _log_to(plan.log(machine))
    socket.sethostname(machine)
    _mount(plan, machine)
    _configure_network(plan, machine)
    run(munged(plan, machine), env=daemon_environment(plan))  # returns once munged is ready

    def start_daemon(*_: object) -> None:
        subprocess.Popen(slurm_daemon(plan, machine), env=daemon_environment(plan), start_new_session=True)

    signal.signal(START_DAEMON, start_daemon)
    start_daemon()
    _reap_forever()


def _handshake() -> None:
    """Wait until the host has made the network link. Exit if the process that was to make it has died."""
    sys.stdout.buffer.write(NAMESPACES_READY)
    sys.stdout.flush()
    if sys.stdin.buffer.readline() != LINK_READY:
        sys.exit("no network link: the process that builds the cluster has ended")


def _log_to(path: Path) -> None:
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)


def _mount(plan: ClusterPlan, machine: str) -> None:
    own = plan.machine_dir(machine)
    for name in ("munge", "nvme", "spool"):
        (own / name).mkdir(parents=True, exist_ok=True)
    os.chown(own / "nvme", plan.account.pw_uid, plan.account.pw_gid)
    run(["mount", "-t", "proc", "proc", "/proc"])
    paths = needed_paths()
    replaced = [Path("/dev/shm"), Path("/tmp")]  # PMIx fails if nodes share /tmp
    replaced += [barrier for barrier in barriers(paths, plan.account.pw_uid) if not _is_below(barrier, replaced)]
    run(["sh", "-c", view_script(replaced, paths)])
    run(["mount", "--bind", str(plan.hosts_file), "/etc/hosts"])
    run(["mount", "--bind", str(own / "nvme"), str(plan.nvme)])
    if machine in plan.nodes:  # the host uses the controller's munge, so that one stays visible to the host
        run(["mount", "--bind", str(own / "munge"), str(plan.munge_dir)])


def _is_below(path: Path, directories: list[Path]) -> bool:
    return any(path.is_relative_to(directory) for directory in directories)


def _configure_network(plan: ClusterPlan, machine: str) -> None:
    script = f"link set lo up\naddress add {plan.address(machine)}/24 dev eth0\nlink set eth0 up\n"
    run(["ip", "-batch", "-"], input=script)


def _reap_forever() -> None:
    while True:
        try:
            os.wait()
        except ChildProcessError:
            signal.pause()  # no process is left; the machine still runs until it is killed or gets START_DAEMON


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
