"""The first process of a machine of the testbed: `python -m slurm.testbed.machine RUN_DIR MACHINE`.

It runs in network, mount, UTS, IPC and PID namespaces of its own. It turns them into a machine with a name, an address,
its own /proc, /dev/shm, /tmp and disk, starts that machine's daemons, and from then on reaps orphans. When it is killed
the kernel kills every process of the machine and takes the namespaces, mounts and network cable with them: a crash.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from slurm.testbed.daemons import daemon_environment, munged, slurm_daemon
from slurm.testbed.namespaces import NAMESPACES_READY, PLUG_IN, START_DAEMON
from slurm.testbed.plan import ClusterPlan, load_plan
from slurm.testbed.view import barriers, needed_paths, view_script


def main(run_dir: Path, machine: str) -> None:
    """Become the machine. Never returns while the machine lives."""
    os.umask(0o022)
    _handshake()
    plan = load_plan(run_dir)
    if plan is None:
        sys.exit(f"machine {machine}: {run_dir} describes no cluster; it was taken down meanwhile")
    _log_to(plan.log(machine))
    socket.sethostname(machine)
    _mount(plan, machine)
    _configure_network(plan, machine)
    subprocess.run(munged(plan, machine), env=daemon_environment(plan), check=True)  # returns once it serves

    def start_daemon(*_: object) -> None:
        subprocess.Popen(slurm_daemon(plan, machine), env=daemon_environment(plan), start_new_session=True)

    signal.signal(START_DAEMON, start_daemon)
    start_daemon()
    _reap_forever()


def _handshake() -> None:
    """Wait until our network cable is plugged in; end if whoever was to do it died."""
    sys.stdout.buffer.write(NAMESPACES_READY)
    sys.stdout.flush()
    if sys.stdin.buffer.readline() != PLUG_IN:
        sys.exit("nobody plugged in the network cable")


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
    _command("mount", "-t", "proc", "proc", "/proc")
    paths = needed_paths()
    replaced = [Path("/dev/shm"), Path("/tmp")]  # PMIx fails where nodes share /tmp
    replaced += [barrier for barrier in barriers(paths, plan.account.pw_uid) if not _is_below(barrier, replaced)]
    _command("sh", "-c", view_script(replaced, paths))
    _command("mount", "--bind", str(plan.hosts_file), "/etc/hosts")
    _command("mount", "--bind", str(own / "nvme"), str(plan.nvme))
    if machine in plan.nodes:  # the controller's munge serves the host too: it stays where the host sees it
        _command("mount", "--bind", str(own / "munge"), str(plan.munge_dir))


def _is_below(path: Path, directories: list[Path]) -> bool:
    return any(path.is_relative_to(directory) for directory in directories)


def _configure_network(plan: ClusterPlan, machine: str) -> None:
    script = f"link set lo up\naddress add {plan.address(machine)}/24 dev eth0\nlink set eth0 up\n"
    subprocess.run(["ip", "-batch", "-"], input=script.encode(), check=True)


def _command(*argv: str) -> None:
    subprocess.run(argv, check=True)


def _reap_forever() -> None:
    while True:
        try:
            os.wait()
        except ChildProcessError:
            signal.pause()  # no daemon is left, but a machine runs on: until it is killed, or told to start one


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
