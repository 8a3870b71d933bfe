"""The scheduler: allocates, starts processes, answers, ends the job, and starts it again."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from launcher.core.exclusion import exclusion
from launcher.core.inputs import LaunchEnded, Terminated, TimeWarned
from launcher.core.stop_reasons import StopReason
from launcher.leadership.requeue import ASK_AGAIN_S
from simulation.event_rules import LACKS_NODES, NO_SLURMD, UNANSWERED
from simulation.runner import Runner
from simulation.standby import BatchScript

if TYPE_CHECKING:
    from simulation.driver import Driver
    from simulation.host import Host
    from simulation.world import World

BASE = "job"  # the base's allocation
KILL_WAIT_S = 30.0
WARNING_S = 90.0
COMMAND_TIMEOUT_S = 10.0


class Step:
    """The srun that starts the runners: until it is released, it ends them all where one cannot be started.

    Attributes:
        failed: the nodes on which none could be started, with the reasons; srun reports them before it ends.
    """

    __slots__ = ("_driver", "_start", "_world", "failed", "is_released", "nodes", "runners")

    def __init__(self, world: World, driver: Driver, nodes: tuple[str, ...]) -> None:
        self._world = world
        self._driver = driver
        self._start = world.slurm.starts  # of the job: it ends with it
        self.nodes = nodes
        self.runners: list[Runner] = []
        self.is_released = False
        self.failed: dict[str, str] = {}
        slow = 10.0 if world.setup.is_slow else 1.0
        world.clock.after(world.delay(0.1, 0.5) * slow, self._begin)

    def _begin(self) -> None:
        world = self._world
        if self.is_released or world.slurm.state != "running" or world.slurm.starts != self._start:
            return
        if not world.slurm.is_answering:
            world.clock.after(COMMAND_TIMEOUT_S, self.end)
            return
        for name in self.nodes:
            host = world.hosts[name]
            if not host.can_be_given_processes:
                self.failed[name] = "srun could start no process there"
            elif host.runner is None:
                self.runners.append(Runner(world, host, self._driver))
        if self.failed:
            world.clock.after(world.delay(0.1, 20), self.end)

    def end(self) -> None:
        """It ends, and its tasks with it."""
        if self.is_released:
            return
        self.is_released = True
        for runner in self.runners:
            self._world.clock.after(self._world.delay(0.0, 0.3), runner.die)
        self._world.clock.after(self._world.delay(0.0, 0.5), self._driver.put, LaunchEnded(failed=self.failed))


class Slurm:
    """The controller.

    Attributes:
        state: running, completing, waiting (in the queue) or over.
        why: what a SIGTERM means now.
        is_answering: whether commands get an answer.
        slow_s: how long an answer takes.
        sbatch_s: how much longer that to a submission takes.
        lies: whether it believes that all nodes are well.
        refuses: whether it refuses a requeue.
        gives_same: whether the next start gets the same nodes.
        cancelled_s: when it was cancelled, and its processes got a SIGTERM.
        starts: how often the job was started.
        requeues: how often the job was requeued since its last start.
        not_launched: nodes on which the last srun could start nothing.
        script: the batch script.
    """

    __slots__ = (
        "_excluded", "_will_start_again", "_world", "cancelled_s", "ends_s", "gives_same", "is_answering", "lies",
        "not_launched", "refuses", "requeues", "sbatch_s", "script", "slow_s", "starts", "state", "step", "why",
    )  # fmt: skip

    def __init__(self, world: World) -> None:
        self._world = world
        self.state = "waiting"
        self.why = "preempted"
        self.is_answering = True
        self.slow_s = self.sbatch_s = 0.0
        self.cancelled_s = math.inf
        self.lies = self.gives_same = self._will_start_again = False
        self.refuses = not world.setup.may_requeue
        self.requeues = self.starts = 0
        self._excluded: frozenset[str] = frozenset()
        self.not_launched: set[str] = set()
        self.ends_s: float | None = None
        self.step: Step | None = None
        self.script: BatchScript | None = None

    # The job's life.

    def start_job(self, nodes: tuple[str, ...]) -> None:
        world = self._world
        self.starts += 1
        self.state, self.why, self.requeues = "running", "preempted", 0
        self._will_start_again = False
        self.not_launched.clear()
        world.job_begins(nodes)
        if world.setup.limit_s:
            self.ends_s = world.clock.now + world.setup.limit_s
            world.clock.at(max(world.clock.now, self.ends_s - WARNING_S), self._warn, self.starts)
            world.clock.at(self.ends_s, self._time_is_up, self.starts)
        self.script = BatchScript(world, world.hosts[nodes[0]])
        self.script.start()

    def terminate(self, why: str, *, starts_again: bool, kill_s: float = KILL_WAIT_S) -> None:
        """Every process of the job gets a SIGTERM, and a SIGKILL later."""
        if self.state != "running":
            return
        self.why = why
        self._will_start_again = starts_again
        if why != "preempted":
            self.state = "completing"
        self._signal()
        self._world.clock.after(kill_s, self._finish, self.starts)

    def script_ended(self) -> None:
        """The batch script has ended: so does the job."""
        if self.state in ("running", "completing"):
            self.state = "completing"
            self._world.clock.after(self._world.delay(0.05, 0.5), self._finish, self.starts)

    def script_killed(self) -> None:
        """The batch script was killed on a host that lives."""
        script = self.script
        if script is None or not script.is_alive or not script.host.is_up:
            return
        script.is_alive = False
        if script.driver is not None:
            script.driver.die()
        self.terminate("batch_script_lost", starts_again=False)

    def host_lost(self, host: Host) -> None:
        """Its crash takes the batch script along; the steps of the job go on."""
        if self.script is not None and self.script.host is host:
            self.script.is_alive = False

    def cancel(self) -> None:
        if self.state == "completing":  # no process is told
            self.why, self._will_start_again = "cancel", False
        elif self.state == "running":
            self.cancelled_s = self._world.clock.now
            self.terminate("cancel", starts_again=False)
        elif self.state == "waiting":
            self.state, self.why = "over", "cancel"
            self._world.ends("cancelled", "in the queue")

    def abandoned(self, host: Host, start: int | None = None) -> None:
        """A runner without a supervisor hands the job back, once Slurm answers."""
        folder, start = self._world.folder, self.starts if start is None else start
        if start != self.starts or not host.is_up:
            return
        if not self.is_answering:
            self._world.clock.after(ASK_AGAIN_S, self.abandoned, host, start)
            return
        if not folder.is_seen(host) or folder.quiet_s is None or self.state not in ("running", "completing"):
            return
        if self.state == "completing" and self.why != "batch_script_lost":
            return
        if folder.result is None and self.requeue(())[0] is None:
            return
        self.terminate("cancel", starts_again=False, kill_s=5.0)

    def requeue(self, exclude: tuple[str, ...]) -> tuple[str | None, bool]:
        """Has the job start again; the error, and whether this request did it."""
        if not self.is_answering:
            return UNANSWERED, False
        if self._world.setup.is_local:
            return "the local cluster starts no job again", False
        if self._will_start_again:
            return None, False
        if self.refuses or self.state not in ("running", "completing") or self.ends_s_passed:
            return "the job cannot be requeued", False
        world = self._world
        least, wanted = world.setup.least, world.setup.nodes + world.setup.spares
        found = exclusion(exclude, before=(), there=world.hosts, usable=self._responding, least=least, wanted=wanted)
        if found.left < least:
            return f"{LACKS_NODES}: {found.left} beside those out of use", False
        self._excluded = found.nodes
        if self.why == "cancel":  # Slurm starts it again all the same
            world.invariants.requeues_cancelled(world.clock.now - self.cancelled_s)
        self.requeues += 1
        self.why, self._will_start_again = "requeue", True
        if self.state == "running":
            self.state = "completing"
            self._signal()
            world.clock.after(KILL_WAIT_S, self._finish, self.starts)
        return None, True

    def _responding(self) -> set[str]:
        return {name for name, host in self._world.hosts.items() if host.is_up}

    @property
    def ends_s_passed(self) -> bool:
        return self.ends_s is not None and self._world.clock.now >= self.ends_s

    def submit_again(self) -> None:
        """Another job, in the same folder."""
        self.state, self._excluded = "waiting", frozenset()
        self.try_to_start()

    def try_to_start(self) -> None:
        """Starts the job again once enough nodes are there."""
        if self.state != "waiting" or not self.starts:
            return
        world = self._world
        world.boosters.end_all(0.0)  # the base job comes before them
        setup = world.setup
        hosts = [host for host in world.hosts.values() if host.is_up and host.has_slurmd and not host.is_drained]
        free = [host.name for host in hosts if host.name not in self._excluded]
        if self.gives_same:
            free.sort(key=lambda name: name not in world.job_nodes)
        wanted = setup.nodes + setup.spares
        least = wanted if setup.least == setup.nodes else setup.least
        if len(free) >= least:
            self.gives_same = False
            self.start_job(tuple(sorted(free[:wanted])))
        elif not world.is_anything_due:
            self.state = "over"
            world.ends("queued", f"{len(free)} nodes are left, {least} are asked for")

    def _signal(self) -> None:
        world = self._world
        for name in world.job_nodes:
            host = world.hosts[name]
            if host.runner is not None and host.has_slurmd and not host.is_frozen:
                world.clock.after(world.delay(0.0, 0.3), host.runner.terminate)
        if self.script is not None and self.script.driver is not None and self.script.is_alive:
            world.clock.after(world.delay(0.0, 0.3), self.script.driver.put, Terminated())

    def _finish(self, start: int) -> None:
        """Whatever is left of the job is killed."""
        if start != self.starts or self.state not in ("running", "completing"):
            return
        world = self._world
        self.state = "over"
        if self.script is not None:
            self.script.is_alive = False
        for name in world.job_nodes:
            host = world.hosts[name]
            for driver in list(host.drivers):
                driver.die()
            if host.runner is not None:
                host.runner.die()
            for group in list(host.agents):
                group.lose(host)
            host.is_allocated = False
        self.ends_s = None
        if self._will_start_again and world.folder.result is None:
            self.state = "waiting"
            world.clock.after(world.delay(1.0, 60.0), self.try_to_start)
        else:
            world.slurm_ends(self.why)

    def _warn(self, start: int) -> None:
        if start == self.starts and self.script is not None and self.script.driver is not None:
            self.script.driver.put(TimeWarned())

    def _time_is_up(self, start: int) -> None:
        if start == self.starts and self.state in ("running", "completing"):
            if not self._will_start_again:
                self.why = "timeout"
            self.state = "completing"
            self._signal()
            self._world.clock.after(KILL_WAIT_S, self._finish, self.starts)

    def start_runners(self, driver: Driver, nodes: tuple[str, ...]) -> None:
        self.not_launched.clear()
        self.step = Step(self._world, driver, nodes)

    # Answers.

    def ask(self, driver: Driver, answer: Callable[[str | None], Any]) -> None:
        """Answers a supervisor's question: `answer` makes the input of an error, or of None; None: it asks again."""
        world = self._world
        if self.is_answering:
            world.clock.after(world.delay(0.01, 0.2) + self.slow_s, self._answer, driver, answer)
        else:
            world.clock.after(COMMAND_TIMEOUT_S, self._answer, driver, answer)

    def _answer(self, driver: Driver, answer: Callable[[str | None], Any]) -> None:
        if driver.is_alive and (message := answer(None if self.is_answering else UNANSWERED)) is not None:
            driver.put(message)

    def unusable(self, driver: Driver, nodes: tuple[str, ...], allocations: Mapping[str, str]) -> dict[str, str]:
        if self.lies:
            return {}
        world, found = self._world, {}
        for name in nodes:
            host = world.hosts[name]
            if not host.is_allocated or allocations[name] != (host.allocation or BASE):
                found[name] = "Slurm finds it ALLOCATED: not in the job"
            elif not host.has_slurmd or host.is_frozen or not world.network.reaches(driver.host, host):
                found[name] = NO_SLURMD
            elif name in self.not_launched:
                found[name] = "srun could start no process there"
        return found

    def why_terminated(self, error: str | None) -> StopReason:
        """As launcher.clusters.slurm.cluster: a job past its time limit, or whose script failed, is COMPLETING, as a
        cancelled one."""
        if error is not None:
            return StopReason.PREEMPTED
        return StopReason.CANCEL if self.why in ("timeout", "failed") else StopReason(self.why)

    def time_left_s(self) -> float | None:
        return None if self.ends_s is None else max(0.0, self.ends_s - self._world.clock.now)

    def ended(self, driver: Driver) -> None:
        """A supervisor off the batch host has written the outcome: it ends the job where the script does not."""
        script = self.script
        if script is None or not (script.is_alive and script.host.is_up):
            self.terminate("over", starts_again=False, kill_s=1.0)
