"""TestCluster: builds and removes a Slurm cluster on this host, and makes its nodes and daemons fail and come back."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm import command
from slurm.client import Slurm
from slurm.command import CommandError, CommandRunner, Result
from slurm.testbed import host, namespaces
from slurm.testbed.daemons import SYSTEM_PATH, write_configuration
from slurm.testbed.hooks import write_settings
from slurm.testbed.namespaces import last_lines, wait_until
from slurm.testbed.plan import (
    CONTROLLER,
    RUN_ROOT,
    ClusterPlan,
    NoSuchCluster,
    TestbedError,
    check_name,
    check_size,
    daemon_name,
    load_plan,
)

READY_TIMEOUT_S = 60.0
SLURMD_PORT = 6818  # Slurm's default


class TestCluster:
    """A Slurm cluster of Linux namespaces on this host, with its own controller, nodes, network and file systems.

    `up` builds a new one, `load` finds an existing one. Both need root. Jobs run as a user without privileges.
    """

    __test__ = False  # pytest collects classes whose name begins with Test

    def __init__(self, plan: ClusterPlan, run: CommandRunner = command.run) -> None:
        self._plan = plan
        self._run = run

    @classmethod
    def up(
        cls,
        name: str = "default",
        nodes: int = 4,
        *,
        user: str | None = None,
        hooks: bool = False,
        switches: int = 0,
        gpus: int = 0,
    ) -> TestCluster:
        """Build a cluster and wait until all its nodes are idle.

        Args:
            name: the cluster's name. Several clusters can exist at the same time.
            nodes: number of nodes.
            user: the user without privileges as whom jobs run. None: the user who called sudo, else `nobody`.
            hooks: whether Slurm calls Holdfast's hooks on the nodes; see `set_hooks`.
            switches: number of leaf switches in topology.conf. The nodes are dealt to them in turn. 0: no topology.
            gpus: number of GPUs that gres.conf gives each node. Their devices are dummies.

        Raises:
            TestbedError: the cluster exists already, the host lacks something, or a part did not start. The parts
                that were built are removed first.
        """
        check_name(name)
        check_size(nodes)
        user = user or host.default_user()
        cls.check(user)
        with host.lock():
            cluster = cls(host.describe(name, nodes, user, hooks=hooks, switches=switches, gpus=gpus))
            try:
                cluster._build()
            except BaseException:
                cluster._remove()
                raise
        return cluster

    @staticmethod
    def check(user: str | None = None) -> None:
        """Check whether this host can run a cluster. Changes nothing.

        Raises:
            TestbedError: the host cannot run one. The message says why and what to do.
        """
        host.check_root()
        host.check_programs()
        host.check_interpreter(user or host.default_user())

    @classmethod
    def load(cls, name: str = "default") -> TestCluster:
        """Find a cluster of this host by its name. It may be one whose `up` was killed.

        Raises:
            TestbedError: no cluster has this name, or the caller is not root.
        """
        host.check_root()
        plan = load_plan(RUN_ROOT / check_name(name))
        if plan is None:
            with host.lock():
                pass  # lock() removes the draft of an `up` that was killed before it had made anything
            there = ", ".join(cls.list()) or "none"
            raise NoSuchCluster(
                f"no cluster {name!r} on this machine; clusters: {there}; `holdfast cluster up` makes one"
            )
        return cls(plan)

    @staticmethod
    def list() -> tuple[str, ...]:
        """Names of the clusters on this machine."""
        return host.clusters()

    def down(self) -> None:
        """Remove the cluster completely, with all its processes. It may be only partly built.

        Does nothing if another process has removed the cluster: a newer one may use the same network by now.
        """
        with host.lock():
            there = load_plan(self._plan.run_dir)
            if there is not None and there.index == self._plan.index:
                self._remove()

    @property
    def name(self) -> str:
        return self._plan.name

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes."""
        return self._plan.nodes

    @property
    def user(self) -> str:
        """Name of the user as whom jobs run."""
        return self._plan.user

    @property
    def home(self) -> Path:
        """The user's home directory, which all nodes and the host share. Job folders belong here."""
        return self._plan.home

    @property
    def nvme(self) -> Path:
        """Mount point of each node's own local disk, which survives a crash of the node."""
        return self._plan.nvme

    @property
    def log_dir(self) -> Path:
        """Directory of the daemons' logs, one file for each machine."""
        return self._plan.log_dir

    @property
    def host_address(self) -> str:
        """The host's IP address on the cluster's network."""
        return self._plan.host_address

    @property
    def env(self) -> dict[str, str]:
        """The environment with which Slurm's commands on the host reach this cluster."""
        return {
            "PATH": SYSTEM_PATH,
            "LANG": "C.UTF-8",
            "SLURM_CONF": str(self._plan.slurm_conf),
            "HOME": str(self.home),
            "USER": self.user,
            "LOGNAME": self.user,
            "SHELL": "/bin/sh",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    @property
    def usage(self) -> str:
        """Shell commands that use and remove the cluster."""
        return (
            f"export SLURM_CONF={self._plan.slurm_conf}\n"
            f"cd {self.home} && runuser -u {self.user} -- env HOME={self.home} sbatch ...\n"
            f"holdfast cluster down --name {self.name}"
        )

    def as_user(self, argv: Sequence[str]) -> tuple[str, ...]:
        """The argument list that runs a program as the cluster's user, for callers that start it themselves."""
        return host.as_user(argv, self._plan.account)

    def run_as_user(
        self,
        argv: Sequence[str],
        *,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
        input: str = "",
        check: bool = True,
    ) -> Result:
        """Run a program on the host as the cluster's user, with the cluster's environment updated by `env`.

        Raises:
            CommandError: as in `slurm.command.run`.
        """
        return self._run(
            self.as_user(argv),
            cwd=cwd or self.home,
            env={**self.env, **(env or {})},
            timeout_s=timeout_s,
            input=input,
            check=check,
        )

    def run_on_node(self, node: str, argv: Sequence[str], *, timeout_s: float = 60.0, check: bool = True) -> Result:
        """Run a program as root inside a node: its processes, network, /dev/shm, /tmp and disk are the node's.

        Raises:
            TestbedError: the cluster has no such node, or the node has crashed.
            CommandError: as in `slurm.command.run`.
        """
        return self._run_on(self._known(node), argv, timeout_s=timeout_s, check=check)

    def set_hooks(self, node: str, **settings: str | float) -> Path:
        """Write a node's hooks.yaml, with the settings that the testbed needs added.

        Returns:
            The directory that the node's hooks use as "/".
        """
        return write_settings(self._plan, self._known(node), settings)

    def node_down(self, node: str) -> None:
        """Cut a node off the network. Its processes and connections stay."""
        namespaces.set_link(self._plan, self._known(node), False, self._run)

    def node_up(self, node: str) -> None:
        """Connect a node to the network again and have its slurmd register with the controller at once.

        Waits until its slurmd can be reached: a link carries no packets in the first second after it is set up.
        """
        namespaces.set_link(self._plan, self._known(node), True, self._run)
        if self._daemon_runs(node):
            self._wait_for_slurmd(node)
            self.run_on_node(node, ["pkill", "-HUP", "-x", daemon_name(node)])

    def kill_daemon(self, machine: str) -> None:
        """Kill a node's slurmd, or slurmctld (machine `ctl`). All other processes stay."""
        self._run_on(machine, ["pkill", "-KILL", "-x", daemon_name(machine)])

    def freeze_daemon(self, machine: str) -> None:
        """Stop a node's slurmd, or slurmctld, with SIGSTOP. The kernel still accepts connections; none is answered."""
        self._run_on(machine, ["pkill", "-STOP", "-x", daemon_name(machine)])

    def thaw_daemon(self, machine: str) -> None:
        """Continue a daemon that `freeze_daemon` stopped."""
        self._run_on(machine, ["pkill", "-CONT", "-x", daemon_name(machine)], check=False)

    def start_daemon(self, machine: str) -> None:
        """Start a Slurm daemon that was killed, and wait until it answers.

        Raises:
            TestbedError: the machine has crashed, or the daemon does not answer within `READY_TIMEOUT_S`.
        """
        os.kill(self._first_process(machine), namespaces.START_DAEMON)
        if machine == CONTROLLER:
            self._wait(self._controller_answers, READY_TIMEOUT_S, "slurmctld does not answer")
        else:
            self._wait_for_slurmd(machine)

    def crash_node(self, node: str) -> None:
        """Kill every process of a node at once. The node loses its /dev/shm, /tmp and network link; its disk stays."""
        namespaces.kill_machine(self._plan, self._known(node), self._run)

    def restart_node(self, node: str) -> None:
        """Boot a node that has crashed or has lost its network link. Waits until its slurmd can be reached."""
        running = namespaces.find_machine(self._plan, self._known(node)) is not None
        if not running or self._plan.link(node) not in namespaces.links(self._run):
            namespaces.kill_machine(self._plan, node, self._run)
            namespaces.start_machines(self._plan, (node,), self._run)
            self._wait_for_slurmd(node)

    def restore(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Bring the cluster back to its state after `up`: no jobs, and every node running, connected and idle.

        What killed jobs of the user have left in a node's memory is removed.

        Raises:
            TestbedError: a node is not idle within `timeout_s`.
        """
        links = namespaces.links(self._run)
        if not self._daemon_runs(CONTROLLER):
            self.start_daemon(CONTROLLER)
        for node in self.nodes:
            self.restart_node(node)
            if not links.get(self._plan.link(node), True):
                self.node_up(node)
            if self._daemon_runs(node):
                self.run_on_node(node, ["pkill", "-CONT", "-x", daemon_name(node)])  # slurmd may be frozen
            else:
                self.start_daemon(node)
        for node in self.nodes:  # scancel alone would wait for KillWait where a process ignores SIGTERM
            self.run_on_node(node, ["pkill", "-KILL", "-u", self.user], check=False)
            memory = ["find", "/dev/shm", "-mindepth", "1", "-user", self.user, "-delete"]
            self.run_on_node(node, memory, check=False)  # a process that ends may remove some of it first
        self._run(
            ["scancel", f"--user={self._plan.account.pw_uid}"], env=self.env
        )  # by name, Slurm 26.05 refuses nobody
        drained = ",".join(node.name for node in self._slurm.nodes() if "DRAIN" in node.flags)
        if drained:
            self._run(["scontrol", "update", f"NodeName={drained}", "State=RESUME"], env=self.env)
        self._wait_idle(timeout_s)

    def status(self) -> dict[str, Any]:
        """The cluster's state as plain data: how to reach it, and each node's address, link and state in Slurm."""
        try:
            states = {node.name: node.state for node in self._slurm.nodes()}
        except CommandError:
            states = {}
        links = namespaces.links(self._run)
        return {
            "name": self.name,
            "user": self.user,
            "home": str(self.home),
            "slurm_conf": str(self._plan.slurm_conf),
            "controller": "up" if states else "silent",
            "nodes": [
                {
                    "name": node,
                    "address": self._plan.address(node),
                    "running": namespaces.find_machine(self._plan, node) is not None,
                    "link": links.get(self._plan.link(node), False),
                    "state": states.get(node),
                }
                for node in self.nodes
            ],
        }

    @property
    def _slurm(self) -> Slurm:
        return Slurm(run=self._run, env=self.env)

    def _run_on(self, machine: str, argv: Sequence[str], *, timeout_s: float = 60.0, check: bool = True) -> Result:
        pid = self._first_process(machine)
        enter = ("nsenter", f"--target={pid}", "--net", "--mount", "--uts", "--ipc", "--pid", *argv)
        return self._run(enter, cwd="/", env=self.env, timeout_s=timeout_s, check=check)

    def _first_process(self, machine: str) -> int:
        pid = namespaces.find_machine(self._plan, machine)
        if pid is None:
            raise TestbedError(f"{machine} of cluster {self.name} is not running (crashed); restart it first")
        return pid

    def _daemon_runs(self, machine: str) -> bool:
        return self._run_on(machine, ["pgrep", "-x", daemon_name(machine)], check=False).returncode == 0

    def _controller_answers(self) -> bool:
        with contextlib.suppress(CommandError):
            return bool(self._slurm.nodes())
        return False

    def _known(self, node: str) -> str:
        if node not in self.nodes:
            raise TestbedError(f"node of cluster {self.name}: got {node!r}, expected one of {', '.join(self.nodes)}")
        return node

    def _build(self) -> None:
        plan = self._plan
        who = plan.account
        for directory in (plan.munge_dir, plan.nvme, plan.log_dir, plan.home):
            directory.mkdir(parents=True)
        os.chown(plan.home, who.pw_uid, who.pw_gid)
        for machine in plan.machines:
            plan.machine_dir(machine).mkdir(parents=True)
        write_configuration(plan, self._run)
        namespaces.add_bridge(plan, self._run)
        namespaces.start_machines(plan, plan.machines, self._run)
        for node in plan.nodes:
            self._wait_for_slurmd(node)
        self._wait_idle(READY_TIMEOUT_S)

    def _wait_for_slurmd(self, node: str) -> None:
        def reachable() -> bool:
            with contextlib.suppress(OSError):
                socket.create_connection((self._plan.address(node), SLURMD_PORT), timeout=0.2).close()
                return True
            return False

        self._wait(reachable, READY_TIMEOUT_S, f"slurmd of {node} cannot be reached")

    def _wait_idle(self, timeout_s: float) -> None:
        others = ["slurmctld does not answer"]

        def all_idle() -> bool:
            with contextlib.suppress(CommandError):
                nodes = [node for node in self._slurm.nodes() if not node.is_idle]
                others[:] = [f"{node.name}: {'+'.join((node.state, *sorted(node.flags)))}" for node in nodes]
                return not others
            return False

        try:
            self._wait(all_idle, timeout_s, "not all nodes are idle")
        except TestbedError as error:
            raise TestbedError(f"{error}; not idle: {', '.join(others)}") from error

    def _wait(self, condition: Callable[[], bool], timeout_s: float, or_else: str) -> None:
        """Call `wait_until`. Its error includes the ends of the machines' logs, because `up` then removes them."""
        try:
            wait_until(condition, timeout_s, f"cluster {self.name}: {or_else}")
        except TestbedError as error:
            logs = "; ".join(f"{machine}: {last_lines(self._plan.log(machine), 2)}" for machine in self._plan.machines)
            raise TestbedError(f"{error}: {logs}") from error

    def _remove(self) -> None:
        plan = self._plan
        namespaces.remove_everything(plan, self._run)
        host.remove_tree(plan.data_dir)
        host.forget(plan)
