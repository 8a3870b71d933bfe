"""The faults by kind. One that lasts returns what ends it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from launcher.core.faults import LOSSES_S, FaultKind
from launcher.core.inputs import (
    AllocationState,
    CancelAsked,
    FaultReported,
    HaltAsked,
    NodeIncident,
    Reported,
    ScaleAsked,
    TimeWarned,
    WorkersEnded,
)
from simulation.clock import EPOCH_S
from simulation.folder import FULL, HANGS, OK, REMOVED
from simulation.runner import BASE

if TYPE_CHECKING:
    from simulation.host import Host
    from simulation.schedule import Fault
    from simulation.world import World

Heal = Callable[[], None] | None


# Workers.


def worker_fails(world: World, fault: Fault, node: Host) -> None:
    how = ("exit", "signal", "user", "silent")[fault.flag]
    _where_workers_run(world, node, lambda runner: runner.fail_workers(how))


def workers_hang(world: World, fault: Fault, node: Host) -> None:
    if not world.setup.has_checkpoint and world.setup.hang_timeout_s is None:
        return  # nobody is to notice
    world.is_dump_silent |= bool(fault.flag)
    _where_workers_run(world, node, lambda runner: runner.training.hang(runner.host.name))


def workers_pause(world: World, fault: Fault, node: Host) -> Heal:
    """A step that takes long: in silence, with signs of life, or in silence until somebody looks at it."""
    found: list[Any] = []

    def strike(runner: Any) -> None:
        found.append(runner.training)
        runner.training.pause(("silent", "active", "looked_at")[fault.flag])

    _where_workers_run(world, node, strike, tries=0)

    def heal() -> None:
        for training in found:
            training.resume()

    return heal


def fabric_missed(world: World, fault: Fault, node: Host) -> None:
    """NCCL does not use what the job file prefers, or requires."""

    def strike(runner: Any) -> None:
        its = {"node": runner.host.name, "attempt": runner.training.number}
        if fault.flag:
            runner.report(FaultReported(**its, kind=FaultKind.FABRIC, reason="NCCL uses sockets"))
        else:
            runner.report(Reported(**its, event="problem", fields={"what": "NCCL uses sockets"}))

    _where_workers_run(world, node, strike)


def _where_workers_run(world: World, node: Host, strike: Callable[[Any], None], tries: int = 20) -> None:
    """Strikes at a node, or at the next one whose workers run, or when some do."""
    names = list(world.hosts)
    at = names.index(node.name)
    for name in (*names[at:], *names[:at]):
        runner = world.hosts[name].runner
        if runner is not None and runner.works and runner.training is not None and runner.is_awake:
            strike(runner)
            return
    if tries:
        world.clock.after(3.0, _where_workers_run, world, node, strike, tries - 1)


def worker_ends_early(world: World, fault: Fault, node: Host) -> None:
    if not world.setup.has_checkpoint and world.setup.hang_timeout_s is None:
        return  # nobody is to notice that the others wait
    runner = node.runner
    if runner is not None and runner.works and runner.training is not None and runner.is_awake:
        ended = WorkersEnded(node=node.name, attempt=runner.training.number, ok=True, step=runner.training.told_step)
        runner.workers_end(ended)


def slow_kill(world: World, fault: Fault, node: Host) -> Heal:
    node.is_unkillable = bool(fault.flag)
    node.kill_s = min(fault.lasts_s, 8.0)

    def heal() -> None:
        node.kill_s, node.is_unkillable = 0.0, False

    return heal


def slow_start(world: World, fault: Fault, node: Host) -> Heal:
    node.start_s = fault.lasts_s
    node.never_warm = bool(fault.flag) and not world.setup.limit_s

    def heal() -> None:
        node.start_s = 0.0

    return heal


# Runners.


def runner_killed(world: World, fault: Fault, node: Host) -> None:
    if node.runner is not None and node.is_up:
        node.runner.die()


def runners_cancelled(world: World, fault: Fault, node: Host) -> None:
    """The base's step is cancelled: each of its runners ends at a moment of its own."""
    for host in world.hosts.values():
        if host.runner is not None and host.runner.allocation == BASE:
            world.touched.setdefault(host.name, set()).add(fault.kind)
            world.clock.after(world.delay(0.0, LOSSES_S / 2), host.runner.die)


def runner_broken(world: World, fault: Fault, node: Host) -> None:
    if node.runner is not None:
        node.runner.breaks(is_environment=bool(fault.flag))


def preflight_fails(world: World, fault: Fault, node: Host) -> None:
    if node.runner is None:
        node.problem = "a GPU has fallen off the bus"


# Nodes.


def node_crashes(world: World, fault: Fault, node: Host) -> Heal:
    node.crash(closes=fault.flag == 0)
    return node.boot if fault.flag < 2 else None


def node_freezes(world: World, fault: Fault, node: Host) -> Heal:
    node.freeze()
    return node.thaw


def node_drained(world: World, fault: Fault, node: Host) -> Heal:
    """An administrator drains it, or its health check fails and nobody drains it."""

    def change(incident: str | None) -> None:
        if fault.flag:
            node.incident = incident
            if node.runner is not None:
                node.runner.report(NodeIncident(node=node.name, reason=incident))
        else:
            node.is_drained = incident is not None

    change("gpu_ecc: 2 uncorrectable")
    return lambda: change(None)


def supervisor_node_crashes(world: World, fault: Fault, node: Host) -> Heal:
    driver = world.ruling()
    return node_crashes(world, fault, driver.host) if driver is not None and not world.setup.is_local else None


def supervisor_node_freezes(world: World, fault: Fault, node: Host) -> Heal:
    driver = world.ruling()
    return node_freezes(world, fault, driver.host) if driver is not None and not world.setup.is_local else None


# The network.


def link_breaks(world: World, fault: Fault, node: Host) -> None:
    for link in list(world.links):
        if link.runner.host is node:
            link.reset()


def links_break(world: World, fault: Fault, node: Host) -> None:
    for link in list(world.links):
        if fault.flag or link.runner.host is not link.driver.host:
            link.reset()


def node_cut(world: World, fault: Fault, node: Host) -> Heal:
    """Both ways, or one of them."""
    pairs = set()
    for name in world.hosts:
        if name != node.name:
            pairs |= {(name, node.name)} if fault.flag != 1 else set()
            pairs |= {(node.name, name)} if fault.flag != 2 else set()
    return _cut(world, pairs)


def partition(world: World, fault: Fault, node: Host) -> Heal:
    """The nodes up to this one against the others; the folder is seen by all, or by one side."""
    names = list(world.hosts)
    at = names.index(node.name) + 1
    one, other = names[:at], names[at:]
    heal_cut = _cut(world, {pair for a in one for b in other for pair in ((a, b), (b, a))})
    hidden = set(other) - world.folder.unseen if fault.flag else set()
    world.folder.unseen |= hidden
    world.changed()

    def heal() -> None:
        heal_cut()
        world.folder.unseen -= hidden

    return heal


def slow_network(world: World, fault: Fault, node: Host) -> Heal:
    world.network.delay_s = 0.4

    def heal() -> None:
        world.network.delay_s = 0.003

    return heal


def _cut(world: World, pairs: set[tuple[str, str]]) -> Callable[[], None]:
    new = pairs - world.network.cuts
    world.network.cuts |= new
    world.changed()

    def heal() -> None:
        world.network.cuts -= new
        world.changed()

    return heal


# Agents.


def agent_dies(world: World, fault: Fault, node: Host) -> None:
    """The agents of this node, or of the first that has any."""
    host = next((host for host in (node, *world.hosts.values()) if host.agents), node)
    for group in list(host.agents):
        group.lose(host)


def agents_refused(world: World, fault: Fault, node: Host) -> Heal:
    """None can be launched."""
    return _for_a_while(world, "are_agents_refused", True)


def agents_late(world: World, fault: Fault, node: Host) -> Heal:
    world.agents_late_s = fault.lasts_s

    def heal() -> None:
        world.agents_late_s = 0.0

    return heal


def agent_lingers(world: World, fault: Fault, node: Host) -> Heal:
    world.agent_lingers_s = fault.lasts_s

    def heal() -> None:
        world.agent_lingers_s = 0.0

    return heal


def launcher_stays(world: World, fault: Fault, node: Host) -> Heal:
    """Launchers do not see that the agents end."""
    return _for_a_while(world, "are_launchers_blind", True)


# Slurm.


def slurm_silent(world: World, fault: Fault, node: Host) -> Heal:
    return _for_a_while(world.slurm, "is_answering", False)


def slurm_slow(world: World, fault: Fault, node: Host) -> Heal:
    return _for_a_while(world.slurm, "slow_s", min(fault.lasts_s, 20.0))


def slurm_lies(world: World, fault: Fault, node: Host) -> Heal:
    return _for_a_while(world.slurm, "lies", True)


def slurmd_dies(world: World, fault: Fault, node: Host) -> None:
    node.has_slurmd = False


def slurm_cuts(world: World, fault: Fault, node: Host) -> None:
    """The node is taken out of the allocation, and what runs there is ended."""
    if world.slurm.script is None or node is world.slurm.script.host:
        return
    node.is_allocated = False
    for driver in list(node.drivers):
        driver.die()
    for group in list(node.agents):
        group.lose(node)
    if node.runner is not None:
        node.runner.die()


def srun_dies(world: World, fault: Fault, node: Host) -> None:
    if world.slurm.step is not None:
        if fault.flag:
            world.slurm.step.failed[node.name] = "srun could start no process there"
        world.slurm.step.end()


def requeue_by_admin(world: World, fault: Fault, node: Host) -> None:
    if world.slurm.state == "running" and not world.setup.is_local:
        world.slurm.gives_same = bool(fault.flag)
        world.slurm.terminate("requeue", starts_again=True)


def preempted(world: World, fault: Fault, node: Host) -> None:
    if not world.setup.is_local:
        world.slurm.terminate("preempted", starts_again=False)


def requeue_refused(world: World, fault: Fault, node: Host) -> Heal:
    return _for_a_while(world.slurm, "refuses", True)


# Boosters.


def booster_preempted(world: World, fault: Fault, node: Host) -> None:
    """With time to stop, with little, or with none."""
    running = world.boosters.running()
    if running:
        running[fault.node % len(running)].terminate("PREEMPTED", (30.0, 1.5, 0.0)[fault.flag])


def booster_ends(world: World, fault: Fault, node: Host) -> None:
    """By an admin, its time limit, or a node."""
    there = [job for job in world.boosters.jobs.values() if job.state is not AllocationState.ENDED]
    if not there:
        return
    job = there[fault.node % len(there)]
    if fault.flag == 2 and job.hosts:
        job.hosts[fault.node % len(job.hosts)].crash(closes=False)
        world.clock.after(world.delay(0.0, 60.0), job.terminate, "NODE_FAIL", 0.0)
    else:
        job.terminate("TIMEOUT" if fault.flag else "CANCELLED by 0", 30.0)


def boosters_wait(world: World, fault: Fault, node: Host) -> Heal:
    return _for_a_while(world.boosters, "is_blocked", True)


def boosters_late(world: World, fault: Fault, node: Host) -> Heal:
    """Their runners are."""
    return _for_a_while(world.boosters, "late_s", fault.lasts_s)


def boosters_fail(world: World, fault: Fault, node: Host) -> Heal:
    """Their scripts end with an error at once."""
    return _for_a_while(world.boosters, "is_broken", True)


def sbatch_late(world: World, fault: Fault, node: Host) -> Heal:
    """A booster may run before its supervisor knows that it was submitted, or is killed before that."""
    return _for_a_while(world.slurm, "sbatch_s", min(fault.lasts_s, 30.0))


def boosters_start(world: World, fault: Fault, node: Host) -> None:
    """All that are in the queue, at once."""
    for job in list(world.boosters.jobs.values()):
        job.try_to_start()


def stranger_joins(world: World, fault: Fault, node: Host) -> None:
    """A runner of a booster that nobody knows any more."""
    if world.setup.boosters and world.slurm.state == "running":
        number = f"stranger-{len(world.boosters.jobs)}"
        job = world.boosters.submit(number, world.setup.booster_nodes, world.job_nodes)
        job.is_told = True
        job.try_to_start()


def scale(world: World, fault: Fault, node: Host) -> None:
    driver = world.ruling()
    if driver is not None:
        driver.put(ScaleAsked(nodes=1 + fault.node))


def _for_a_while(of: Any, name: str, value: Any) -> Heal:
    before = getattr(of, name)
    if before == value:
        return None
    setattr(of, name, value)

    def heal() -> None:
        setattr(of, name, before)

    return heal


# Users.


def cancel(world: World, fault: Fault, node: Host) -> None:
    driver = world.ruling()
    if fault.flag and driver is not None:
        driver.put(CancelAsked())
    elif not world.setup.is_local:
        world.slurm.cancel()


def halt(world: World, fault: Fault, node: Host) -> None:
    at_step = 15 if fault.flag == 1 else 0
    at_s = EPOCH_S + world.clock.now + 30.0 if fault.flag == 2 else 0.0
    world.halt = HaltAsked(at_step=at_step, at_s=at_s)
    driver = world.ruling()
    if driver is not None:
        driver.put(world.halt)


def time_warned(world: World, fault: Fault, node: Host) -> None:
    driver = world.ruling()
    if driver is not None:
        driver.put(TimeWarned())


# The folder.


def folder_full(world: World, fault: Fault, node: Host) -> Heal:
    return _folder(world, FULL)


def folder_hangs(world: World, fault: Fault, node: Host) -> Heal:
    return _folder(world, HANGS)


def folder_removed(world: World, fault: Fault, node: Host) -> None:
    world.folder.mode = REMOVED
    world.changed()


def folder_unseen(world: World, fault: Fault, node: Host) -> Heal:
    folder = world.folder
    if node.name in folder.unseen:
        return None
    folder.unseen.add(node.name)
    world.changed()

    def heal() -> None:
        folder.unseen.discard(node.name)
        _flush(world)

    return heal


def _folder(world: World, mode: str) -> Heal:
    folder = world.folder
    if folder.mode != OK:
        return None
    folder.mode = mode
    world.changed()

    def heal() -> None:
        if folder.mode == mode:
            folder.mode = OK
            _flush(world)

    return heal


def _flush(world: World) -> None:
    for driver in list(world.drivers):
        driver.flush()


# Supervisors.


def supervisor_killed(world: World, fault: Fault, node: Host) -> None:
    driver = world.ruling()
    if driver is not None and not world.setup.is_local:
        driver.die()


def supervisor_freezes(world: World, fault: Fault, node: Host) -> Heal:
    driver = world.ruling()
    if driver is None:
        return None
    driver.freeze()
    return driver.thaw


def batch_script_killed(world: World, fault: Fault, node: Host) -> None:
    if not world.setup.is_local:
        world.slurm.script_killed()


def timer_late(world: World, fault: Fault, node: Host) -> Heal:
    driver = world.ruling()
    if driver is None:
        return None
    driver.timer_late_s = min(fault.lasts_s, 4.0)

    def heal() -> None:
        driver.timer_late_s = 0.0

    return heal


def clock_skewed(world: World, fault: Fault, node: Host) -> None:
    node.skew_s = 40.0 if fault.flag else -40.0


INJECT: dict[str, Callable[..., Any]] = {
    call.__name__: call
    for call in (
        worker_fails, workers_hang, worker_ends_early, slow_kill, slow_start, runner_killed, runner_broken,
        preflight_fails, node_crashes, node_freezes, link_breaks, links_break, node_cut, partition, slow_network,
        agent_dies, agents_late, agent_lingers, slurm_silent, slurm_slow, slurm_lies, slurmd_dies, slurm_cuts,
        srun_dies, requeue_by_admin, preempted, requeue_refused, cancel, halt, time_warned, folder_full, folder_hangs,
        folder_unseen, folder_removed, supervisor_killed, supervisor_freezes, supervisor_node_crashes,
        supervisor_node_freezes, batch_script_killed, timer_late, clock_skewed, booster_preempted, booster_ends,
        boosters_wait, boosters_start, stranger_joins, scale, fabric_missed, workers_pause, agents_refused,
        boosters_late, boosters_fail, sbatch_late, runners_cancelled, launcher_stays, node_drained,
    )
}  # fmt: skip
