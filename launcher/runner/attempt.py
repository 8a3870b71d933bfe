"""The node's part of the running attempt: its workers, the connection to its ckpt agent, and their end."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple
from functools import partial
from pathlib import Path
from typing import Any

from ckpt.agent.process.launch import PID_FILE
from holdfast.base.environment import Variable
from holdfast.base.processes import end_all, environment_of, handles
from launcher.connections.channel import Message
from launcher.core.faults import FaultKind
from launcher.core.hang import WorkSection
from launcher.env.fabric import fabric_environment
from launcher.job import gpus
from launcher.job.jobfile import JobSpec
from launcher.job.program import module_file, uses_torch_compile
from launcher.runner.activity import Activity
from launcher.runner.agent_template import AgentTemplate
from launcher.runner.config import RunnerConfig
from launcher.runner.extensions import own_directory
from launcher.runner.gpu_memory import GpuMemory
from launcher.runner.learned import path_of
from launcher.runner.log_watch import LogWatch
from launcher.runner.network import NetworkWatch, nccl_log_pattern
from launcher.runner.node_watch import NodeWatch
from launcher.runner.port import free_port
from launcher.runner.ras import collect
from launcher.runner.stacks import Worker, dump
from launcher.runner.step_times import StepReader, fewest_steps
from launcher.runner.variables import worker_environment
from launcher.runner.watch import Patience, Watch
from launcher.runner.workers import Workers
from lifecycle import expected, instance_type
from slurm.hostlist import expand

log = logging.getLogger(__name__)

_COMPILER = "torch._inductor.compile_fx"  # takes seconds, which would be the first step's
KILL_TIMEOUT_S = 2.0
LINGER_S = 30.0  # for killed processes that are ending, and for the driver to free the memory of ended ones
_GPU_MEMORY_POLL_S = 0.25
_RENDEZVOUS_TIMEOUT_S = 120


class NodeAttempt:
    """Runs one attempt after another. Call order: run() as a task; start and end for each attempt; close.

    Args:
        config: the runner's configuration.
        send: sends a message to the supervisor.
        beat: called when a heartbeat has something new.

    Attributes:
        number: number of the running attempt; None if there is none.
        final_step: the newest step of the last ended attempt; None if no step is known.
    """

    def __init__(self, config: RunnerConfig, send: Callable[[Message], None], beat: Callable[[], None]) -> None:
        self._config = config
        self._send = send
        self._beat = beat
        self._workers = Workers(self._on_workers)
        self._template = AgentTemplate(config.ram_dir)
        self._watch: Watch | None = None
        self._patience = Patience()
        self._following: asyncio.Task[None] | None = None
        self._rejoining: asyncio.Task[None] | None = None
        self._spec: JobSpec | None = None
        self._first_rank = 0
        self._port = free_port()
        self._extensions: Path | None = None  # the node's directory of torch's C++ extensions
        self._modules = config.ram_dir / "modules.json"  # what a worker has loaded
        self._environment: dict[str, str] = {}  # of the attempt's workers, until their modules are learned
        self._pids: dict[int, int] = {}  # of the workers, by rank
        self._network: NetworkWatch | None = None
        self._nccl_logs: str | None = None  # pattern of their file names
        self._activity = Activity()
        self._log_watch = LogWatch()
        self._node_watch = NodeWatch()
        self._gpu_memory: GpuMemory | None = None  # None without GPUs
        self._gpus: Sequence[str] = ()  # of the attempt
        self._readers: list[StepReader] = []
        self._fewest_steps = 0  # that are worth a report
        self._handler_told = False
        self._terminated = False  # whether the workers have received a SIGTERM
        self._is_stopped = False  # whether the workers were asked to stop
        self._have_ended = False  # whether all workers have ended by themselves
        self._ending = asyncio.Lock()
        self.number: int | None = None
        self.final_step: int | None = None

    async def run(self, spec: JobSpec | None) -> None:
        """Keeps a warm process for workers and a template for agents. Without a job it only loads torch."""
        if spec is None:
            workers = self._workers.run()
        else:
            learned = path_of(_program(spec), os.environ | spec.env) if _learns(spec) else None
            workers = self._workers.run(await asyncio.to_thread(_preload, spec), spec.env, learned)
        beside = [] if spec is None or spec.checkpoint is None else [self._template.run()]
        if (
            spec is not None
            and gpus.count(spec.gpus_per_node)
            and (names := self._config.machine_gpus or gpus.visible())
        ):
            self._gpu_memory = GpuMemory(names)
            beside.append(self._gpu_memory.learn())
        await asyncio.gather(workers, *beside)

    def start(self, spec: JobSpec, message: Message) -> None:
        """Begins an attempt, given the supervisor's `start`. The previous attempt must have ended."""
        self._spec = spec
        self.number = attempt = message["attempt"]
        self._handler_told = self._terminated = self._is_stopped = self._have_ended = False
        self._node_watch.begin()
        self._first_rank = message["node_rank"] * spec.workers_per_node
        log_dir = self._log_dir(attempt)
        nodes = list(expand(message["nodes"]))
        env = worker_environment(spec, self._config, attempt, nodes)
        self._gpus = gpus.visible()
        if self._config.machine_gpus is not None:
            self._gpus = gpus.share(self._config.machine_gpus, spec.gpus_per_node, message["node_rank"])
            env.setdefault("CUDA_VISIBLE_DEVICES", ",".join(self._gpus))
        self._fewest_steps = fewest_steps(len(nodes))
        pattern = nccl_log_pattern(log_dir, self._config.node)
        fabric = fabric_environment(spec.fabric, os.environ | env, pattern) if spec.gpus_per_node else {}
        self._nccl_logs = fabric.get("NCCL_DEBUG_FILE")
        env |= fabric
        self._extensions = self._extensions or own_directory(os.environ | env)
        self._modules.unlink(missing_ok=True)
        self._environment = {}
        if _learns(spec) and not self._workers.has_learned:
            env[Variable.MODULES] = str(self._modules)
            self._environment = env
        if message["agent"]:
            self._watch = Watch(attempt, message["node_rank"], self._config.ram_dir, self._send, self._patience)
            self._following = asyncio.create_task(self._watch.run())
        self._workers.start(
            {
                "attempt": attempt,
                "max_restarts": spec.max_restarts,
                "env": env,
                "script": None if spec.script is None else str(spec.script),
                "module": spec.module,
                "command": list(spec.command),
                "args": list(spec.args),
                "workers": spec.workers_per_node,
                "node_rank": message["node_rank"],
                "nodes": len(nodes),
                "master_addr": message["master_addr"],
                "master_port": message["master_port"],
                "hosts": message["hosts"],
                "run_id": self._config.run_id,
                "log_dir": str(log_dir),
                "rendezvous_timeout_s": _RENDEZVOUS_TIMEOUT_S,
                "agreed_stop": message["agent"],
                "measure_steps": spec.straggler.action != "off",
                "extensions": None if self._extensions is None else str(self._extensions),
                "log_rules": _log_rules(spec),
            }
        )
        self._port = free_port()

    def state(self) -> Message:
        """The state that the supervisor needs before it starts another attempt."""
        return {"warm": self._workers.warm, "port": self._port}

    def progress(self) -> Message:
        """The progress of the workers, for a heartbeat."""
        step, slowest = (self._watch.step(), self._watch.slowest()) if self._watch is not None else (None, None)
        activity = self._activity
        times = [list(astuple(found)) for reader in self._readers if (found := reader.take()) is not None]
        known = {"step": step, "slowest": slowest, "activity": activity.count, "rank_ended": activity.has_ended}
        section = self._watch.section() if self._watch is not None else WorkSection.STEP
        return known | {"times": times, "section": section}

    async def look(self) -> None:
        """Reads the workers' logs in a thread, because their file system may hang. Reports once if NCCL does not use
        the node's fabric."""
        await asyncio.to_thread(self._activity.look)
        await self._look_for_rules()
        if self._environment and self._modules.exists():
            self._workers.learn(self._modules, self._environment)
            self._environment = {}
        network = self._network
        problem = await asyncio.to_thread(network.look) if network is not None else None
        if problem is not None and self._network is network:
            self._network = None
            required = self._spec is not None and self._spec.fabric == "require"
            if required:
                self._report_fault(FaultKind.FABRIC, f"{self._config.node}: {problem}")
            else:
                self._report_problem("training is slower than it could be (fabric: prefer)", problem)

    async def _look_for_rules(self) -> None:
        attempt = self.number
        for met in await asyncio.to_thread(self._log_watch.look):
            if attempt is not None and attempt == self.number and not self._have_ended:
                if met.action == "report":
                    self._report_problem(f"log rule {met.rule}, rank {met.rank}", met.line)
                else:
                    reason = f"rank {met.rank} on {self._config.node} met log rule {met.rule}: {met.line}"
                    self._report_fault(FaultKind.LOG_RULE, reason, met.rank, met.action)

    def _report_fault(self, kind: FaultKind, reason: str, rank: int | None = None, action: str | None = None) -> None:
        fault = {"kind": kind.value, "reason": reason, "rank": rank, "action": action}
        self._send({"op": "fault", "attempt": self.number} | fault)

    def _report_problem(self, what: str, detail: str | None = None) -> None:
        self._send({"op": "problem", "attempt": self.number, "what": what, "detail": detail})

    def look_after_agent(self) -> None:
        """Checks whether the agent responds. Called as often as Watch.look_after_agent requires."""
        if self._watch is not None:
            self._watch.look_after_agent()

    def stop(self, *, terminated: bool, lower_s: float | None = 0.0) -> None:
        """Makes all ranks stop at one step boundary. Without an agent each rank stops by its own SIGTERM handler.

        Args:
            lower_s: for how long ranks that have saved wait for the lower tiers; None: until their own deadline.
            terminated: whether Slurm has also sent a SIGTERM to the workers.
        """
        self._is_stopped = True
        self.look_at_handlers()
        if self._watch is not None:
            self._watch.stop(lower_s)
        elif self.number is not None:
            handling = [pid for pid in self._pids.values() if handles(pid, signal.SIGTERM)]
            if not (terminated or self._terminated):
                self._terminated = True
                self._workers.terminate(handling)
            self._send({"op": "stopping", "attempt": self.number, "handled": bool(handling)})

    def look_at_handlers(self) -> None:
        """Reports once if rank 0 has its own SIGTERM handler, so that ranks may stop at different steps.

        All ranks run one script.
        """
        pid = self._pids.get(0)
        if pid is not None and self._watch is not None and not self._handler_told and handles(pid, signal.SIGTERM):
            self._handler_told = True
            what = (
                "the script handles SIGTERM itself and does not call should_stop(step): its ranks may end at different "
                "steps, without a save of the last ones"
            )
            self._report_problem(what)

    def release_agent(self) -> None:
        """The ranks have ended, so the agent may exit."""
        if self._watch is not None:
            self._watch.release_agent(finish=False)

    async def finish(self) -> None:
        """Nothing is trained any more: ends the workers that still run, and has the agent write the newest step."""
        async with self._ending:
            if not self._have_ended:  # else what a script has left running may go on meanwhile
                await self._workers.kill(KILL_TIMEOUT_S)
            if self._watch is not None:
                self._watch.release_agent(finish=True)

    def renew_agent(self, generation: int) -> None:
        """Ends the node's agent, because another one is being started."""
        if self._watch is not None:
            if self._rejoining is not None:
                self._rejoining.cancel()
            self._rejoining = asyncio.create_task(self._make_way(self._watch, generation))

    async def dump(self, attempt: int) -> None:
        """Writes and reports the position of each worker. The first node also asks NCCL's RAS."""
        boundaries = self._watch.boundaries() if self._watch is not None else {}
        workers = [Worker(rank=rank, pid=pid, boundary=boundaries.get(rank)) for rank, pid in self._pids.items()]
        log_dir = self._log_dir(attempt)
        asks_ras = self._first_rank == 0 and self._spec is not None and bool(self._spec.gpus_per_node)
        environment = os.environ | (self._spec.env if self._spec is not None else {})
        ask_ras = [collect(log_dir, environment)] if asks_ras else []
        ranks, *answers = await asyncio.gather(dump(workers, log_dir), *ask_ras)
        ras = [process for answer in answers for process in answer]
        self._send({"op": "stacks", "attempt": attempt, "ranks": ranks, "ras": ras})

    async def kill(self, attempt: int) -> None:
        """Ends an attempt, if it runs here, and reports that no process of it is left."""
        async with self._ending:  # another supervisor's request may be ending it
            is_current = attempt == self.number
            left = await self._end(attempt + 1, 0, partial(self._linger, attempt)) if is_current else []
            step = self.final_step if is_current else None
        held = await self._await_gpu_memory(attempt) if is_current and not left else ""
        self._send({"op": "killed", "attempt": attempt, "step": step, "left": left, "held": held})

    def _linger(self, attempt: int, what: str | list[int]) -> float:
        """Reports what is left of an attempt and will go by itself. Returns for how long this node waits for it."""
        held = what if isinstance(what, str) else f"killed processes {what} have not ended yet"
        self._send({"op": "lingering", "attempt": attempt, "held": held, "wait_s": LINGER_S})
        return LINGER_S

    async def _await_gpu_memory(self, attempt: int) -> str:
        """Waits until ended workers hold no memory on the node's GPUs. Returns what they hold after LINGER_S.

        Another supervisor may begin its attempt meanwhile, whose workers use memory again.
        """
        until_s, is_told = time.monotonic() + LINGER_S, False
        while self._gpu_memory is not None and self.number is None:
            held = await self._gpu_memory.held(self._gpus)
            if not held or time.monotonic() >= until_s:
                return held
            if not is_told:
                self._linger(attempt, held)
                is_told = True
            await asyncio.sleep(_GPU_MEMORY_POLL_S)
        return ""

    async def end(self, next_attempt: int | None = None, generation: int = 0) -> list[int]:
        """Ends the attempt's workers and the node's ckpt agents. Waits for an end that has begun, which would otherwise
        end the next attempt's processes too.

        Args:
            next_attempt, generation: agents of this attempt and generation are kept.

        Returns:
            Pids of processes that could not be killed.
        """
        async with self._ending:
            return await self._end(next_attempt, generation)

    async def _end(
        self, next_attempt: int | None, generation: int, on_slow: Callable[[list[int]], float] | None = None
    ) -> list[int]:
        self.number = None
        self._pids = {}
        for reader in self._readers:
            reader.close()
        self._readers = []
        self._network = None
        for task in (self._following, self._rejoining):
            if task is not None:
                task.cancel()
        self._following = self._rejoining = None
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.leave_agent()
        workers, agents = await asyncio.gather(
            self._workers.kill(KILL_TIMEOUT_S, on_slow),
            end_all(lambda: self._agent_pids(next_attempt, generation), KILL_TIMEOUT_S, on_slow),
        )
        if watch is not None:
            self.final_step = watch.step()
            watch.close()
        return workers + agents

    async def close(self) -> None:
        """Ends all processes, including the warm process and the agents' template."""
        await self.end()
        if self._extensions is not None:
            await asyncio.to_thread(shutil.rmtree, self._extensions, ignore_errors=True)
        await self._workers.close(KILL_TIMEOUT_S)
        await self._template.close()

    def _on_workers(self, report: dict[str, Any]) -> None:
        event = report.pop("event")
        if event == "warm":
            self._beat()
        elif event == "ended":
            self._have_ended = True
            step = self._watch.step() if self._watch is not None else None
            seen = self._node_watch.collect()
            self._send({"op": "ended", "step": step, "stopped": self._is_stopped} | seen | report)
        else:
            if event == "started":
                self._pids = dict(enumerate(report["pids"], self._first_rank))
                self._readers = [StepReader(rank, pid, self._fewest_steps) for rank, pid in self._pids.items()]
                log_dir = self._log_dir(report["attempt"])
                if self._nccl_logs is not None:
                    hardware = expected(instance_type())
                    self._network = NetworkWatch(self._pids.values(), self._nccl_logs, hardware)
                logs = {rank: log_dir / f"rank-{rank}.log" for rank in self._pids}
                self._activity.follow(self._pids.values(), logs.values())
                if self._spec is not None:
                    self._log_watch.follow(_log_rules(self._spec), logs)
            self._send({"op": event} | report)

    async def _make_way(self, watch: Watch, generation: int) -> None:
        watch.leave_agent()
        left = await end_all(lambda: self._agent_pids(watch.attempt, generation), KILL_TIMEOUT_S)
        if left:
            log.error("checkpoint agent %s does not end; nothing is saved meanwhile", left)
        await watch.rejoin(generation)

    def _agent_pids(self, spared_attempt: int | None, spared_generation: int = 0) -> list[int]:
        """The node's ckpt agents, except those of one generation of one attempt, and those of later starts of the
        job."""
        spared = (str(spared_attempt), str(spared_generation))
        found = []
        for file in self._config.ram_dir.glob(PID_FILE.format(pid="[0-9]*")):
            pid = int(file.stem.partition("-")[2])
            environment = environment_of(pid)
            if environment.get(Variable.RUN_ID) != self._config.run_id or environment.get(Variable.ROLE) != "agent":
                file.unlink(missing_ok=True)  # the process has ended
            elif int(environment.get(Variable.RESTART_COUNT, "0")) > self._config.restart_count:
                continue
            elif (environment.get(Variable.ATTEMPT), environment.get(Variable.GENERATION, "0")) != spared:
                found.append(pid)
        return found

    def _log_dir(self, attempt: int) -> Path:
        return self._config.job_dir / "log" / f"attempt-{attempt}"


def _log_rules(spec: JobSpec) -> list[tuple[str, str, str]]:
    return [(rule.title, rule.pattern, rule.action) for rule in spec.log_rules]


def _learns(spec: JobSpec) -> bool:
    """Whether the modules that workers load are learned: without checkpoints they have no step boundaries."""
    return spec.learn_preload and spec.checkpoint is not None and not spec.command


def _program(spec: JobSpec) -> str:
    return f"-m {spec.module}" if spec.module else str(spec.script)


def _preload(spec: JobSpec) -> list[str]:
    """The folder from which the workers import first, and the modules to load before an attempt."""
    folder = os.getcwd() if spec.script is None else str(spec.script.parent)
    source = module_file(spec.module, [folder]) if spec.module else spec.script
    return [folder, *([_COMPILER] if uses_torch_compile(source) else []), *spec.preload]
