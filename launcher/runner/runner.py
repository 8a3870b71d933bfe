"""The runner of a node: `python -m launcher.runner`.

It connects to the supervisor, sends a heartbeat twice a second, and starts and ends processes as the supervisor
requests. If the supervisor is lost, it looks for the next one, or starts it when this node is next in the succession
(leadership/succession.py). Without a supervisor it ends its workers after FENCE_S, so that a node that is cut off does
not continue to write. After LEAVE_S it requeues the job. If Slurm has sent a SIGTERM it does so after FENCE_S, because
the job is being ended and only KillWait is left. The package docstring lists the messages.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Coroutine

from ckpt import CheckpointError
from holdfast.base.disk_read import DiskRead
from holdfast.base.messages import MalformedMessage, check_whole
from holdfast.base.processes import die_with_parent
from launcher.connections.channel import Channel, ChannelError, Message, connect
from launcher.connections.host_addresses import own_addresses
from launcher.connections.messages import TO_RUNNER
from launcher.core.liveness import SUSPECT_S
from launcher.errors import LauncherError, UsageError
from launcher.job.jobfile import JobSpec, read_job
from launcher.leadership.succession import Succession
from launcher.runner.attempt import NodeAttempt
from launcher.runner.config import RunnerConfig
from launcher.runner.memory import (
    MEMORY_ROOT,
    hold_memory_dir,
    is_looked_after,
    remove_ended,
    remove_memory_dir,
)
from launcher.runner.report_log import ReportLog
from launcher.runner.step_signals import WARNINGS
from launcher.runner.watch import LOOK_S
from launcher.scheduler.run_liveness import liveness
from lifecycle import HealthWatch, Status, preflight

log = logging.getLogger(__name__)

HEARTBEAT_S = LOOK_S
SUPERVISOR_SILENCE_S = 5.0  # then the connection counts as lost
FENCE_S = 10.0
LEAVE_S = 120.0
HEALTH_LOOK_S = 5.0  # between two looks at the node's verdict
DISK_FREE_S = 10.0  # for an agent that was killed to release the node's disk

RECONNECT_EVERY_S = 0.5
_LOOK_S = 0.2
_LONGEST_LOOK_S = 2.0  # the process may have stood still, so a longer time between two looks counts as this
_SECRET_TIMEOUT_S = 5.0


class Runner:
    """The node's part of a run.

    `run()` returns when the supervisor releases it, or LEAVE_S after the supervisor was lost.
    """

    def __init__(self, config: RunnerConfig) -> None:
        self._config = config
        self._succession = Succession(config.job_dir, config.run_id)
        secret = config.job_dir / "secret"
        self._secret_file = DiskRead(lambda: bytes.fromhex(secret.read_text()), secret)
        self._secret: bytes | None = None  # read once, because the file system may hang when a connection breaks
        self._report_log = ReportLog()
        self._health = HealthWatch()
        self._attempt = NodeAttempt(config, self._send, self._beat)
        self._channel: Channel | None = None
        self._spec: JobSpec | None = None
        self._problem: str | None = None  # why this node cannot train
        self._broken: Message | None = None  # why it cannot start workers; every supervisor must receive it
        self._memory: int | None = None  # the descriptor that locks the node's memory directory
        self._leaving = False
        self._is_terminated = False  # Slurm has sent a SIGTERM
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._on_sigterm)
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: None)  # the supervisor decides what to do
        for unheard in (signal.SIGHUP, *WARNINGS):  # `scancel --signal` sends them to every process
            signal.signal(unheard, signal.SIG_IGN)
        self._preflight()
        if self._config.parent_pid is None and not is_looked_after(self._config.ram_dir, os.environ):
            self._in_background(self._tidy())
        warm = asyncio.create_task(self._attempt.run(self._spec))
        looking = asyncio.create_task(self._look())
        if self._config.parent_pid is None:  # the nodes of the local cluster are one machine
            self._in_background(self._follow_health())
        heard_s = time.monotonic()
        try:
            while not self._leaving:
                rules = await self._address()
                if await self._session() or await self._address() != rules:  # a new supervisor gets the full time
                    heard_s = time.monotonic()
                if not self._leaving:
                    await self._succession.step_in()
                gone_s = time.monotonic() - heard_s
                if gone_s > FENCE_S:
                    await self._attempt.end()
                leave_s = FENCE_S if self._is_terminated else LEAVE_S
                if gone_s > leave_s:
                    log.error("no supervisor at %s:%s for %s s: leaving", *await self._address(), leave_s)
                    if self._config.is_booster:
                        remove_memory_dir(self._config.ram_dir)  # no process can read it any more
                    elif self._config.parent_pid is None:
                        await self._succession.abandon()
                    return
                if not self._leaving:
                    await self._until_another_rules(rules, RECONNECT_EVERY_S)
        finally:
            warm.cancel()
            looking.cancel()
            await self._attempt.close()
            await self._succession.close()

    def _preflight(self) -> None:
        """Checks whether this node can train. The first message to the supervisor reports a problem."""
        try:
            sick = [finding for finding in preflight(MEMORY_ROOT) if finding.status is Status.CRITICAL]
            if sick:
                raise LauncherError("; ".join(map(str, sick)))
            self._memory = hold_memory_dir(self._config.ram_dir)
            self._spec = read_job(self._config.job_dir)
            if self._spec.script is not None:
                with self._spec.script.open("rb"):
                    pass
        except (LauncherError, OSError, ValueError) as error:
            self._problem = str(error)
            log.error("this node cannot train: %s", error)

    async def _tidy(self) -> None:
        """Frees the memory of this user's ended jobs, if there are no hooks."""

        def has_ended(run_id: str) -> bool:
            return liveness(run_id, os.environ).has_ended

        for run_id in await asyncio.to_thread(remove_ended, self._config.ram_dir, has_ended):
            log.info("memory of %s, which has ended: freed", run_id)

    async def _session(self) -> bool:
        """One connection to the supervisor, from hello to its end; False if none could be made."""
        try:
            self._secret = self._secret or await self._secret_file.newest(_SECRET_TIMEOUT_S)
            found = await self._connect(self._secret)
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
        if self._broken is not None:
            self._send(self._broken)
        if self._health.reason is not None:
            self._report_health()
        self._report_sigterm()  # before "ended" of workers that it has stopped
        for report in self._report_log.messages():
            self._send(report)
        beat = asyncio.create_task(self._heartbeat())
        try:
            message: Message = answer
            while True:
                await self._obey(message)
                if self._leaving:
                    break
                received = await self._receive(channel)
                if received is None:
                    break
                message = received
        except ChannelError as error:
            log.warning("supervisor lost: %s", error)
            self._succession.closed()
        finally:
            beat.cancel()
            self._channel = None
            await channel.close()
        return True

    async def _receive(self, channel: Channel) -> Message | None:
        """The supervisor's next message; None if it was silent for too long, or if another supervisor leads now.

        A supervisor that was silent may have been frozen. Its orders are accepted again only if no other has taken
        over.
        """
        receiving = asyncio.create_task(channel.receive())
        silent_s = 0.0
        try:
            while silent_s < SUPERVISOR_SILENCE_S:
                looked_s = time.monotonic()
                wait_s = _LOOK_S if silent_s else SUSPECT_S
                await asyncio.wait({receiving}, timeout=wait_s)
                if receiving.done():
                    message = receiving.result()
                    if silent_s and await self._succession.is_superseded():
                        break
                    self._succession.answered()
                    return message
                if await self._succession.is_superseded():
                    break
                await self._succession.step_in()
                silent_s += min(time.monotonic() - looked_s, _LONGEST_LOOK_S)
            log.warning("supervisor lost: silent for %.1f s, or another rules", silent_s)
            return None
        finally:
            receiving.cancel()

    async def _until_another_rules(self, rules: tuple[str, int], timeout_s: float) -> None:
        until_s = time.monotonic() + timeout_s
        while await self._address() == rules and time.monotonic() < until_s:
            await asyncio.sleep(_LOOK_S)

    async def _connect(self, secret: bytes) -> tuple[Channel, Message] | None:
        """Connects to the leading supervisor.

        None if another one takes over meanwhile, because the old one may never answer.
        """
        host, port = address = await self._address()
        hello = {"op": "hello", "node": self._config.node, "pid": os.getpid(), "problem": self._problem}
        hello |= {"restart_count": self._config.restart_count, "attempt": self._attempt.number} | self._attempt.state()
        hello |= {"addresses": own_addresses(), "allocation": self._config.allocation}
        connecting = asyncio.create_task(connect(host, port, secret, hello))
        try:
            while not connecting.done():
                await asyncio.wait({connecting}, timeout=_LOOK_S)
                if not connecting.done() and await self._address() != address:
                    return None
                if not connecting.done() and self._succession.term:
                    await self._succession.step_in()
            return connecting.result()
        finally:
            connecting.cancel()

    async def _heartbeat(self) -> None:
        while True:
            self._attempt.look_after_agent()
            self._beat()
            await asyncio.sleep(HEARTBEAT_S)

    async def _look(self) -> None:
        while True:
            await self._attempt.look()
            await asyncio.sleep(HEARTBEAT_S)

    async def _follow_health(self) -> None:
        while True:
            if await asyncio.to_thread(self._health.look):
                self._report_health()
            await asyncio.sleep(HEALTH_LOOK_S)

    def _report_health(self) -> None:
        self._send({"op": "incident", "reason": self._health.reason})

    def _beat(self) -> None:
        attempt = self._attempt
        self._send({"op": "heartbeat", "attempt": attempt.number} | attempt.progress() | attempt.state())

    async def _obey(self, message: Message) -> None:
        try:
            check_whole(message, TO_RUNNER)
        except MalformedMessage as error:
            reason = f"the supervisor and this runner do not understand each other: {error}"
            log.error("%s", reason)
            self._send({"op": "broken", "reason": reason, "environment": False})
            return
        op, attempt = message["op"], self._attempt
        if op == "start":
            await attempt.end(next_attempt=message["attempt"])
            self._report_log.clear()
            if self._spec is None:
                raise RuntimeError(f"{self._config.node}: start of an attempt on a node that failed its preflight")
            attempt.start(self._spec, message)
        elif op == "kill":
            self._in_background(attempt.kill(message["attempt"]))
        elif op == "ack":
            self._succession.turn = message["turn"]
        elif op == "leave":
            self._leaving = True
            await attempt.end()
            if message["forget"]:
                remove_memory_dir(self._config.ram_dir)
            if message["clear_disk"]:
                await asyncio.to_thread(self._clear_disk)
        elif op == "hold":
            await attempt.end(next_attempt=message["attempt"], generation=message["generation"])
            self._report_log.clear()
        elif message.get("attempt") != attempt.number:
            return  # it is about an earlier attempt
        elif op == "stop":
            attempt.stop(terminated=self._is_terminated, lower_s=message["lower_s"])
        elif op == "release_agent":
            attempt.release_agent()
        elif op == "finish_agent":
            self._in_background(attempt.finish())
        elif op == "renew_agents":
            attempt.renew_agent(message["generation"])
        elif op == "dump":
            self._in_background(attempt.dump(message["attempt"]))

    def _clear_disk(self) -> None:
        """Removes the run's steps from the node's disk: nobody restores from them without the node."""
        checkpoint = self._spec.checkpoint if self._spec is not None else None
        if checkpoint is None or checkpoint.nvme is None:
            return
        from ckpt.tiers.nvme import NvmeTier

        tier = NvmeTier(checkpoint.nvme.path, checkpoint.namespace, node=self._config.node)
        try:
            names = tier.remove_run(self._config.run_id, DISK_FREE_S)
            log.info("%d steps removed from %s, as the job goes on without this node", len(names), tier.where)
        except (CheckpointError, OSError) as error:
            log.warning("the job's steps stay on this node's disk: %s", error)

    def _on_sigterm(self) -> None:
        """Slurm will end the step (requeue, preemption), so all ranks stop at one boundary and save."""
        self._is_terminated = True
        self._report_sigterm()
        self._attempt.look_at_handlers()
        if self._channel is None:
            self._attempt.stop(terminated=True)

    def _report_sigterm(self) -> None:
        if self._is_terminated:
            self._send({"op": "signal", "name": "SIGTERM"})

    def _send(self, message: Message) -> None:
        if message["op"] == "broken":
            self._broken = message
        if self._attempt.number is not None and message.get("attempt") == self._attempt.number:
            self._report_log.note(message)
        if self._channel is not None:
            try:
                self._channel.send(message)
            except ValueError as error:
                log.error("%s of attempt %s not sent: %s", message["op"], message.get("attempt"), error)

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _address(self) -> tuple[str, int]:
        """The address of the leading supervisor.

        Until the first term can be read, that of the one that started this runner.
        """
        ruling = await self._succession.ruling()
        return (ruling.host, ruling.port) if ruling is not None else (self._config.host, self._config.port)


def main() -> int:
    """Entry point. All configuration is in the environment."""
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
