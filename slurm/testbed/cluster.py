"""The real Slurm on one machine, as one object: up, down, and nodes that are lost and come back."""

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
    """A cluster of namespaces on this machine, with its own controller, nodes, network and file systems.

    Made by `up`, found again by `load`. Needs root; jobs run for an ordinary user.
    """

    __test__ = False  # not a test class, whatever its name

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
            name: what it is called; several clusters may stand side by side.
            nodes: number of nodes.
            user: the ordinary user for whom jobs run; None for the user behind sudo, or `nobody`.
            hooks: whether Slurm calls this project's hooks on its nodes; see `set_hooks`.
            switches: leaf switches of the topology that Slurm is told; the nodes are dealt to them in order. 0: none.
            gpus: GPUs that Slurm is told each node has; their devices do nothing.

        Raises:
            TestbedError: it exists already, this machine cannot hold it, or a part did not start. What was built is
                then removed again.
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
        """Find out whether this machine can hold a cluster, without changing it.

        Raises:
            TestbedError: it cannot; the message says why and what to do.
        """
        host.check_root()
        host.check_programs()
        host.check_interpreter(user or host.default_user())

    @classmethod
    def load(cls, name: str = "default") -> TestCluster:
        """The cluster of that name, also one whose `up` died half way.

        Raises:
            TestbedError: there is none.
        """
        host.check_root()
        plan = load_plan(RUN_ROOT / check_name(name))
        if plan is None:
            with host.lock():
                pass  # on the way it removes what an `up` left that died before it had made anything
            there = ", ".join(cls.list()) or "none"
            raise NoSuchCluster(f"no cluster {name!r} on this machine, there is: {there}; `cluster up` makes one")
        return cls(plan)

    @staticmethod
    def list() -> tuple[str, ...]:
        """Names of the clusters on this machine."""
        return host.clusters()

    def down(self) -> None:
        """Remove the cluster, however far it was built and whatever runs on it. Nothing of it is left.

        One that another process has removed meanwhile is left alone: its network may be a newer cluster's by now.
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
        """Name of the ordinary user for whom jobs run."""
        return self._plan.user

    @property
    def home(self) -> Path:
        """A directory of that user which all nodes and the host share: the place for job folders."""
        return self._plan.home

    @property
    def nvme(self) -> Path:
        """Where each node sees a local disk of its own, which survives its crash."""
        return self._plan.nvme

    @property
    def log_dir(self) -> Path:
        """What the machines' daemons wrote, a file each."""
        return self._plan.log_dir

    @property
    def host_address(self) -> str:
        """The address at which the nodes see this host."""
        return self._plan.host_address

    @property
    def env(self) -> dict[str, str]:
        """The environment in which Slurm's commands on the host speak with this cluster."""
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
        """How to use the cluster from a shell, in a few lines."""
        return (
            f"export SLURM_CONF={self._plan.slurm_conf}\n"
            f"cd {self.home} && runuser -u {self.user} -- env HOME={self.home} sbatch ...\n"
            f"holdfast cluster down --name {self.name}"
        )

    def as_user(self, argv: Sequence[str]) -> tuple[str, ...]:
        """The argument list that runs a program as the ordinary user, for those who start it themselves."""
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
        """Run a program on the host as the ordinary user, with the cluster's environment and `env` on top.

        Raises:
            CommandError: as `slurm.command.run`.
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
            TestbedError: the node has crashed.
            CommandError: as `slurm.command.run`.
        """
        return self._run_on(self._known(node), argv, timeout_s=timeout_s, check=check)

    def set_hooks(self, node: str, **settings: str | float) -> Path:
        """Sets what the site would in a node's /etc/holdfast/hooks.yaml, beside what the testbed needs.

        Returns:
            What stands for "/" in the files of the node's hooks.
        """
        return write_settings(self._plan, self._known(node), settings)

    def node_down(self, node: str) -> None:
        """Cut a node off the network. Nothing on it ends and no connection is closed: it is just silent."""
        namespaces.set_link(self._plan, self._known(node), False, self._run)

    def node_up(self, node: str) -> None:
        """Connect a node again, and have its slurmd report at once rather than at the controller's next look.

        Waits until its slurmd can be reached: a link that is set up carries nothing for a second, and srun gives up
        after two.
        """
        namespaces.set_link(self._plan, self._known(node), True, self._run)
        if self._daemon_runs(node):
            self._wait_for_slurmd(node)
            self.run_on_node(node, ["pkill", "-HUP", "-x", daemon_name(node)])

    def kill_daemon(self, machine: str) -> None:
        """Kill a node's slurmd, or the controller's slurmctld (`ctl`), and nothing else."""
        self._run_on(machine, ["pkill", "-KILL", "-x", daemon_name(machine)])

    def freeze_daemon(self, machine: str) -> None:
        """Stop a node's slurmd, or the controller's slurmctld: its kernel takes calls on, and nobody answers them."""
        self._run_on(machine, ["pkill", "-STOP", "-x", daemon_name(machine)])

    def thaw_daemon(self, machine: str) -> None:
        """Let a daemon go on that was frozen."""
        self._run_on(machine, ["pkill", "-CONT", "-x", daemon_name(machine)], check=False)

    def start_daemon(self, machine: str) -> None:
        """Start a Slurm daemon that was killed, and wait until it answers."""
        os.kill(self._first_process(machine), namespaces.START_DAEMON)
        if machine == CONTROLLER:
            self._wait(self._controller_answers, READY_TIMEOUT_S, "its controller does not answer")
        else:
            self._wait_for_slurmd(machine)

    def crash_node(self, node: str) -> None:
        """Kill every process of a node at once. Its /dev/shm, /tmp and network link are gone, its disk stays."""
        namespaces.kill_machine(self._plan, self._known(node), self._run)

    def restart_node(self, node: str) -> None:
        """Boot a node that has crashed, or has no network cable left, and wait until its slurmd can be reached."""
        running = namespaces.find_machine(self._plan, self._known(node)) is not None
        if not running or self._plan.link(node) not in namespaces.links(self._run):
            namespaces.kill_machine(self._plan, node, self._run)
            namespaces.start_machines(self._plan, (node,), self._run)
            self._wait_for_slurmd(node)

    def restore(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Make the cluster as it was after `up`: no jobs, every node running, connected, not drained, and idle.

        Raises:
            TestbedError: a node is not idle in time.
        """
        links = namespaces.links(self._run)
        if not self._daemon_runs(CONTROLLER):
            self.start_daemon(CONTROLLER)
        for node in self.nodes:
            self.restart_node(node)
            if not links.get(self._plan.link(node), True):
                self.node_up(node)
            if self._daemon_runs(node):
                self.run_on_node(node, ["pkill", "-CONT", "-x", daemon_name(node)])  # it may be frozen
            else:
                self.start_daemon(node)
        for node in self.nodes:  # scancel alone would give those that ignore SIGTERM their 30 s of KillWait
            self.run_on_node(node, ["pkill", "-KILL", "-u", self.user], check=False)
        self._run(["scancel", f"--user={self.user}"], env=self.env)
        drained = ",".join(node.name for node in self._slurm.nodes() if "DRAIN" in node.flags)
        if drained:
            self._run(["scontrol", "update", f"NodeName={drained}", "State=RESUME"], env=self.env)
        self._wait_idle(timeout_s)

    def status(self) -> dict[str, Any]:
        """Facts for people and programs: how to reach the cluster; each node's address, link, and state in Slurm."""
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
            raise TestbedError(f"{machine} of cluster {self.name} does not run: it has crashed; restart it first")
        return pid

    def _daemon_runs(self, machine: str) -> bool:
        return self._run_on(machine, ["pgrep", "-x", daemon_name(machine)], check=False).returncode == 0

    def _controller_answers(self) -> bool:
        with contextlib.suppress(CommandError):
            return bool(self._slurm.nodes())
        return False

    def _known(self, node: str) -> str:
        if node not in self.nodes:
            raise TestbedError(f"cluster {self.name} has no node {node!r}, its nodes are {', '.join(self.nodes)}")
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

        self._wait(reachable, READY_TIMEOUT_S, f"{node} does not boot")

    def _wait_idle(self, timeout_s: float) -> None:
        def all_idle() -> bool:
            with contextlib.suppress(CommandError):  # the controller does not answer yet
                return all(node.is_idle for node in self._slurm.nodes())
            return False

        self._wait(all_idle, timeout_s, "its nodes are not all idle")

    def _wait(self, condition: Callable[[], bool], timeout_s: float, or_else: str) -> None:
        """Wait as `wait_until`; an error adds what the machines said last, as `up` then removes their logs."""
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
