"""The runner of a node: `python -m launcher.runner`.

Connects to the supervisor, says twice a second that it lives, starts and ends what the supervisor asks for. Without a
supervisor it looks for the next one, or starts it when its turn has come (succession.py). It ends its workers after
FENCE_S, so that a node that is cut off cannot go on writing, and hands the job back to Slurm after LEAVE_S; already
after FENCE_S where Slurm has sent it a SIGTERM: the job is being ended then, and has KillWait left. The messages are
listed in the package's docstring.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from launcher.channel import Channel, ChannelError, Message, connect
from launcher.errors import LauncherError, UsageError
from launcher.fabric import fabric_environment
from launcher.jobfile import JobSpec
from launcher.runner.activity import Activity
from launcher.runner.config import RunnerConfig
from launcher.runner.memo import Memo
from launcher.runner.memory import MEMORY_ROOT, is_left_to_epilog, make_memory_dir, remove_memory_dir
from launcher.runner.network import NetworkWatch, nccl_log_pattern
from launcher.runner.port import free_port
from launcher.runner.processes import die_with_parent, end_all, environment_of, pids_with_environment
from launcher.runner.stacks import Worker, dump
from launcher.runner.step_signals import WARNINGS
from launcher.runner.succession import Succession
from launcher.runner.variables import worker_environment
from launcher.runner.watch import LOOK_S, Patience, Watch
from launcher.runner.workers import Workers
from launcher.terms import SUSPECT_S
from lifecycle import Status, expected, instance_type, preflight
from slurm.hostlist import expand

log = logging.getLogger(__name__)

HEARTBEAT_S = LOOK_S
SUPERVISOR_SILENCE_S = 5.0  # the connection is dead
FENCE_S = 10.0
LEAVE_S = 120.0
KILL_TIMEOUT_S = 2.0

_RECONNECT_S = 0.5
_LOOK_S = 0.2
_RENDEZVOUS_TIMEOUT_S = 120


class Runner:
    """The node's side of a run. `run()` returns when the supervisor lets us go or has been gone for LEAVE_S."""

    def __init__(self, config: RunnerConfig) -> None:
        self._config = config
        self._succession = Succession(config.job_dir)
        self._memo = Memo()
        self._workers = Workers(self._on_workers)
        self._channel: Channel | None = None
        self._watch: Watch | None = None
        self._patience = Patience()
        self._following: asyncio.Task[None] | None = None
        self._rejoining: asyncio.Task[None] | None = None
        self._attempt: int | None = None
        self._first_rank = 0
        self._final_step: int | None = None  # of the attempt that ended last
        self._spec: JobSpec | None = None
        self._problem: str | None = None
        self._port = free_port()
        self._leaving = False
        self._is_terminated = False  # Slurm has sent a SIGTERM
        self._pids: dict[int, int] = {}  # of the attempt's workers, by rank
        self._network: NetworkWatch | None = None
        self._nccl_logs: str | None = None  # the pattern of their names
        self._activity = Activity()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._on_sigterm)
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: None)  # the supervisor decides
        for warning in WARNINGS:
            signal.signal(warning, signal.SIG_IGN)
        self._preflight()
        warm = asyncio.create_task(self._workers.run())
        heard_s = time.monotonic()
        try:
            while not self._leaving:
                rules = self._address()
                if await self._session() or self._address() != rules:  # one that has just begun gets its time
                    heard_s = time.monotonic()
                if not self._leaving:
                    await self._succession.step_in()
                gone_s = time.monotonic() - heard_s
                if gone_s > FENCE_S:
                    await self._end_attempt()
                leave_s = FENCE_S if self._is_terminated else LEAVE_S
                if gone_s > leave_s:
                    log.error("no supervisor at %s:%s for %s s: leaving", *self._address(), leave_s)
                    if self._config.parent_pid is None:
                        await self._succession.abandon()
                    return
                if not self._leaving:
                    await self._until_another_rules(rules, _RECONNECT_S)
        finally:
            warm.cancel()
            await self._end_attempt()
            await self._workers.close(KILL_TIMEOUT_S)
            await self._succession.close()

    def _preflight(self) -> None:
        """Finds out whether this node can train; the supervisor hears of a problem in the first message."""
        try:
            sick = [finding for finding in preflight(MEMORY_ROOT) if finding.status is Status.CRITICAL]
            if sick:
                raise LauncherError("; ".join(map(str, sick)))
            make_memory_dir(self._config.ram_dir)
            job = json.loads((self._config.job_dir / "job.json").read_text())
            self._spec = JobSpec.from_mapping(job, self._config.job_dir)
            with self._spec.script.open("rb"):
                pass
        except (LauncherError, OSError, ValueError) as error:
            self._problem = str(error)
            log.error("this node cannot train: %s", error)

    async def _session(self) -> bool:
        """One connection to the supervisor, from hello to its end; False if none could be made."""
        try:
            secret = bytes.fromhex((self._config.job_dir / "secret").read_text())
            found = await self._connect(secret)
        except (ChannelError, OSError, ValueError) as error:
            log.warning("supervisor not reached: %s", error)
            return False
        if found is None:
            return False
        channel, answer = found
        if answer["op"] == "welcome" and not self._succession.welcome(answer["term"], answer["turn"]):
            await channel.close()
            return False
        self._channel = channel
        self._tell_of_sigterm()  # before the ends of workers that it has stopped
        for told in self._memo.messages():
            self._send(told)
        beat = asyncio.create_task(self._heartbeat())
        try:
            message: Message = answer
            while True:
                await self._obey(message)
                if self._leaving:
                    break
                heard = await self._hear(channel)
                if heard is None:
                    break
                message = heard
        except ChannelError as error:
            log.warning("supervisor lost: %s", error)
            self._succession.closed()
        finally:
            beat.cancel()
            self._channel = None
            await channel.close()
        return True

    async def _hear(self, channel: Channel) -> Message | None:
        """The supervisor's next message; None when it has been silent for too long, or another rules meanwhile.

        One that has been silent may be one that was frozen: it is obeyed again only if nobody has followed it.
        """
        receiving = asyncio.create_task(channel.receive())
        silent_s = 0.0
        try:
            while silent_s < SUPERVISOR_SILENCE_S:
                wait_s = _LOOK_S if silent_s else SUSPECT_S
                await asyncio.wait({receiving}, timeout=wait_s)
                if receiving.done():
                    message = receiving.result()
                    if silent_s and self._succession.is_superseded:
                        break
                    self._succession.heard()
                    return message
                silent_s += wait_s
                if self._succession.is_superseded:
                    break
                await self._succession.step_in()
            log.warning("supervisor lost: silent for %.1f s, or another rules", silent_s)
            return None
        finally:
            receiving.cancel()

    async def _until_another_rules(self, rules: tuple[str, int], timeout_s: float) -> None:
        until_s = time.monotonic() + timeout_s
        while self._address() == rules and time.monotonic() < until_s:
            await asyncio.sleep(_LOOK_S)

    async def _connect(self, secret: bytes) -> tuple[Channel, Message] | None:
        """To the supervisor that rules; None if another comes to rule meanwhile: the old one may never answer."""
        host, port = address = self._address()
        hello = {"op": "hello", "node": self._config.node, "pid": os.getpid(), "problem": self._problem}
        hello |= {"attempt": self._attempt} | self._state()
        connecting = asyncio.create_task(connect(host, port, secret, hello))
        try:
            while not connecting.done():
                await asyncio.wait({connecting}, timeout=_LOOK_S)
                if not connecting.done() and self._address() != address:
                    return None
                if not connecting.done() and self._succession.term:
                    await self._succession.step_in()
            return connecting.result()
        finally:
            connecting.cancel()

    async def _heartbeat(self) -> None:
        while True:
            if self._watch is not None:
                self._watch.look_after_agent()
            self._beat()
            await asyncio.sleep(HEARTBEAT_S)

    def _beat(self) -> None:
        step, slowest = (self._watch.step(), self._watch.slowest()) if self._watch is not None else (None, None)
        self._look_at_network()
        progress = {"step": step, "slowest": slowest, "activity": self._activity.look()}
        self._send({"op": "heartbeat", "attempt": self._attempt} | progress | self._state())

    async def _obey(self, message: Message) -> None:
        op = message["op"]
        if op == "start":
            await self._end_attempt(next_attempt=message["attempt"])
            self._start(message)
        elif op == "stop" and self._is_current(message) and self._watch is not None:
            self._watch.stop()
        elif op == "release_agent" and self._is_current(message) and self._watch is not None:
            self._watch.release_agent()
        elif op == "renew_agents" and self._is_current(message) and self._watch is not None:
            if self._rejoining is not None:
                self._rejoining.cancel()
            self._rejoining = asyncio.create_task(self._renew_agent(self._watch, message["generation"]))
        elif op == "kill":
            self._in_background(self._kill(message["attempt"]))
        elif op == "dump" and self._is_current(message):
            self._in_background(self._dump(message["attempt"]))
        elif op == "ack":
            self._succession.turn = message["turn"]
        elif op == "leave":
            self._leaving = True
            await self._end_attempt()
            if message["forget"] and not is_left_to_epilog(self._config.ram_dir, os.environ):
                remove_memory_dir(self._config.ram_dir)

    def _start(self, message: Message) -> None:
        spec = self._spec
        if spec is None:
            raise RuntimeError(f"{self._config.node}: start of an attempt on a node that failed its preflight")
        self._memo.clear()
        self._attempt = message["attempt"]
        self._first_rank = message["node_rank"] * spec.workers_per_node
        log_dir = self._log_dir(self._attempt)
        nodes = list(expand(message["nodes"]))
        env = worker_environment(spec, self._config, self._attempt, nodes)
        pattern = nccl_log_pattern(log_dir, self._config.node)
        fabric = fabric_environment(spec.fabric, os.environ | env, pattern) if spec.gpus_per_node else {}
        self._nccl_logs = fabric.get("NCCL_DEBUG_FILE")
        env |= fabric
        if message["agent"]:
            self._watch = Watch(self._attempt, message["node_rank"], self._config.ram_dir, self._send, self._patience)
            self._following = asyncio.create_task(self._watch.run())
        self._workers.start(
            {
                "attempt": self._attempt,
                "env": env,
                "script": str(spec.script),
                "args": list(spec.args),
                "workers": spec.workers_per_node,
                "node_rank": message["node_rank"],
                "nodes": len(nodes),
                "master_addr": message["master_addr"],
                "master_port": message["master_port"],
                "run_id": f"{self._config.run_id}-{self._attempt}",
                "log_dir": str(log_dir),
                "rendezvous_timeout_s": _RENDEZVOUS_TIMEOUT_S,
            }
        )
        self._port = free_port()

    def _on_workers(self, report: dict[str, Any]) -> None:
        event = report.pop("event")
        if event == "warm":
            self._beat()
        elif event == "ended":
            self._send({"op": "ended", "step": self._watch.step() if self._watch is not None else None} | report)
        else:
            if event == "started":
                self._pids = dict(enumerate(report["pids"], self._first_rank))
                log_dir = self._log_dir(report["attempt"])
                if self._nccl_logs is not None:
                    hardware = expected(instance_type())
                    self._network = NetworkWatch(self._pids.values(), self._nccl_logs, hardware)
                self._activity.follow(self._pids.values(), (log_dir / f"rank-{rank}.log" for rank in self._pids))
            self._send({"op": event} | report)

    def _look_at_network(self) -> None:
        problem = self._network.look() if self._network is not None else None
        if problem is not None:
            self._network = None
            required = self._spec is not None and self._spec.fabric == "require"
            self._send({"op": "network", "attempt": self._attempt, "problem": problem, "required": required})

    async def _dump(self, attempt: int) -> None:
        boundaries = self._watch.boundaries() if self._watch is not None else {}
        workers = [Worker(rank=rank, pid=pid, boundary=boundaries.get(rank)) for rank, pid in self._pids.items()]
        self._send({"op": "stacks", "attempt": attempt, "ranks": await dump(workers, self._log_dir(attempt))})

    async def _kill(self, attempt: int) -> None:
        is_current = attempt == self._attempt
        left = await self._end_attempt() if is_current else []
        step = self._final_step if is_current else None
        self._send({"op": "killed", "attempt": attempt, "step": step, "left": left})

    async def _renew_agent(self, watch: Watch, generation: int) -> None:
        """The node's agent makes way for another, which is coming up."""
        watch.leave_agent()
        left = await end_all(lambda: self._agent_pids(watch.attempt, generation), KILL_TIMEOUT_S)
        if left:
            log.error("checkpoint agent %s does not end (uninterruptible sleep); nothing is saved meanwhile", left)
        await watch.rejoin(generation)

    async def _end_attempt(self, next_attempt: int | None = None) -> list[int]:
        """Ends the attempt's workers and the node's ckpt agents, but for those that are coming up for `next_attempt`.

        Returns:
            Pids that the kernel would not let go.
        """
        self._attempt = None
        self._pids = {}
        self._network = None
        for task in (self._following, self._rejoining):
            if task is not None:
                task.cancel()
        self._following = self._rejoining = None
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.leave_agent()
        left = await self._workers.kill(KILL_TIMEOUT_S)
        left += await end_all(lambda: self._agent_pids(next_attempt), KILL_TIMEOUT_S)
        if watch is not None:
            self._final_step = watch.step()
            watch.close()
        return left

    def _agent_pids(self, spared_attempt: int | None, spared_generation: int = 0) -> list[int]:
        """The node's ckpt agents, but for those of one generation of one attempt."""
        spared = (str(spared_attempt), str(spared_generation))
        pids = pids_with_environment({"HOLDFAST_RUN_ID": self._config.run_id, "HOLDFAST_ROLE": "agent"})
        environments = ((pid, environment_of(pid)) for pid in pids)
        return [
            pid
            for pid, environment in environments
            if (environment.get("HOLDFAST_NODE") or environment.get("SLURMD_NODENAME")) == self._config.node
            and (environment.get("HOLDFAST_ATTEMPT"), environment.get("HOLDFAST_GENERATION", "0")) != spared
        ]

    def _on_sigterm(self) -> None:
        """Slurm is about to end the step (requeue, preemption): all ranks stop at one boundary and save."""
        self._is_terminated = True
        self._tell_of_sigterm()
        if self._channel is None and self._watch is not None:
            self._watch.stop()

    def _tell_of_sigterm(self) -> None:
        if self._is_terminated:
            self._send({"op": "signal", "name": "SIGTERM"})

    def _send(self, message: Message) -> None:
        if self._attempt is not None and message.get("attempt") == self._attempt:
            self._memo.note(message)
        if self._channel is not None:
            try:
                self._channel.send(message)
            except ValueError as error:
                log.error("%s of attempt %s not sent: %s", message["op"], message.get("attempt"), error)

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _log_dir(self, attempt: int) -> Path:
        return self._config.job_dir / "log" / f"attempt-{attempt}"

    def _state(self) -> Message:
        return {"warm": self._workers.warm, "port": self._port}

    def _is_current(self, message: Message) -> bool:
        return message["attempt"] == self._attempt

    def _address(self) -> tuple[str, int]:
        """Of the supervisor that rules; until the first term can be read, the one that started us."""
        ruling = self._succession.ruling()
        return (ruling.host, ruling.port) if ruling is not None else (self._config.host, self._config.port)


def main() -> int:
    """Entry point: everything comes from the environment."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        config = RunnerConfig.from_env(os.environ)
    except UsageError as error:
        print(f"launcher.runner: {error}", file=sys.stderr)
        return error.exit_code
    if config.parent_pid is not None:
        die_with_parent(config.parent_pid)
    asyncio.run(Runner(config).run())
    return 0
