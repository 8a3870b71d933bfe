"""A runner that misses its supervisor: whom it obeys, who stands by, and how the job is handed back in the end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.processes import children
from launcher.clusters.slurm import requeue as slurm_requeue
from launcher.connections.channel import Channel, Message, serve
from launcher.connections.links import LEAVE
from launcher.leadership import requeue
from launcher.leadership import succession as succession_module
from launcher.leadership.succession import Succession
from launcher.leadership.terms import Term, claim, newest, newest_number, renew
from launcher.runner import runner as runner_module
from launcher.runner.config import RunnerConfig
from launcher.runner.runner import Runner
from launcher.runner.workers import Workers
from slurm import CommandError, Slurm
from slurm.command import Result

SECRET = b"\0"
DEADLINE_S = 30.0


@pytest.fixture
def job_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job's folder; no runner loads torch."""

    async def nothing(workers: Workers) -> None:
        pass

    monkeypatch.setattr(Workers, "run", nothing)
    (tmp_path / "secret").write_text(SECRET.hex())
    return tmp_path


def runner(job_dir: Path, port: int) -> Runner:
    ram_dir = job_dir / "ram"
    return Runner(
        RunnerConfig(
            run_id="test-succession",
            node="n1",
            ram_dir=ram_dir,
            job_dir=job_dir,
            host="127.0.0.1",
            port=port,
            parent_pid=None,
        )
    )


class Supervisor:
    """One in a test's hands, which takes the next term."""

    def __init__(self, job_dir: Path) -> None:
        self._job_dir = job_dir
        self._came: asyncio.Queue[Channel] = asyncio.Queue()
        self.heard = 0  # messages; -1 once the runner has gone
        self.ops: list[str] = []  # of the messages

    @contextlib.asynccontextmanager
    async def serves(self) -> AsyncIterator[int]:
        """While it does; its port."""
        server = await serve("127.0.0.1", SECRET, self._accept)
        try:
            yield server.port
        finally:
            server.close()

    def take_office(self, port: int) -> None:
        self.term = newest_number(self._job_dir) + 1
        term = Term(number=self.term, run_id="test", node=None, host="127.0.0.1", port=port, pid=os.getpid())
        assert claim(self._job_dir, term)

    async def runner(self) -> Channel:
        """The connection of a runner that has come."""
        return await asyncio.wait_for(self._came.get(), DEADLINE_S)

    @property
    def has_runner(self) -> bool:
        return not self._came.empty()

    async def _accept(self, channel: Channel, hello: Message) -> None:
        channel.send({"op": "welcome", "term": self.term, "turn": None})
        self._came.put_nowait(channel)
        with contextlib.suppress(Exception):
            while True:
                self.ops.append((await channel.receive())["op"])
                self.heard += 1
        self.heard = -1


def test_a_supervisor_that_wakes_up_after_its_succession_is_not_obeyed(
    job_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It orders the runner to leave: the runner goes to the one that rules instead, and obeys that one."""
    monkeypatch.setattr(runner_module, "SUSPECT_S", 0.3)
    monkeypatch.setattr(runner_module, "_LOOK_S", DEADLINE_S)  # it looks at nothing until it is told something

    async def scene() -> None:
        frozen, successor = Supervisor(job_dir), Supervisor(job_dir)
        async with frozen.serves() as port, successor.serves() as next_port:
            frozen.take_office(port)
            running = asyncio.create_task(runner(job_dir, port).run())
            channel = await frozen.runner()
            await asyncio.sleep(0.6)  # twice SUSPECT_S: silent
            successor.take_office(next_port)
            channel.send(LEAVE)
            (await successor.runner()).send(LEAVE)
            await asyncio.wait_for(running, DEADLINE_S)

    asyncio.run(scene())


def test_a_runner_that_cannot_start_workers_says_so_to_each_supervisor(
    job_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its Python may be found wanting before it has reached any."""

    async def fails(workers: Workers) -> None:
        workers._report({"event": "broken", "reason": "no torch", "environment": True})

    monkeypatch.setattr(Workers, "run", fails)

    async def scene() -> None:
        for _ in range(2):
            supervisor = Supervisor(job_dir)
            async with supervisor.serves() as port:
                supervisor.take_office(port)
                first = asyncio.create_task(runner(job_dir, port).run())
                channel = await supervisor.runner()
                while "broken" not in supervisor.ops:
                    await asyncio.sleep(0.01)
                channel.send(LEAVE)
                await asyncio.wait_for(first, DEADLINE_S)

    asyncio.run(asyncio.wait_for(scene(), DEADLINE_S))


def test_a_runner_whose_terms_cannot_be_read_goes_on_with_its_heartbeats(
    job_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their file system hangs, and with it the supervisor: it is silent, but it may hear."""
    monkeypatch.setattr(runner_module, "SUSPECT_S", 0.1)
    monkeypatch.setattr(runner_module, "HEARTBEAT_S", 0.1)
    hangs, thaws = threading.Event(), threading.Event()

    def read(job_dir: Path) -> Term | None:
        if connected.is_set():
            hangs.set()
            thaws.wait(DEADLINE_S)
        return newest(job_dir)

    connected = threading.Event()
    monkeypatch.setattr(succession_module, "newest", read)

    async def scene() -> None:
        supervisor = Supervisor(job_dir)
        async with supervisor.serves() as port:
            supervisor.take_office(port)
            running = asyncio.create_task(runner(job_dir, port).run())
            channel = await supervisor.runner()
            connected.set()
            await asyncio.to_thread(hangs.wait, DEADLINE_S)
            before = supervisor.heard
            while supervisor.heard < before + 10:
                await asyncio.sleep(0.01)
            channel.send(LEAVE)
            while supervisor.heard >= 0:
                await asyncio.sleep(0.01)
            thaws.set()
            await asyncio.wait_for(running, DEADLINE_S)

    asyncio.run(asyncio.wait_for(scene(), DEADLINE_S))


def test_a_silent_supervisor_is_left_for_its_successor_before_it_is_given_up(
    job_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "SUPERVISOR_SILENCE_S", 100 * DEADLINE_S)

    async def scene() -> None:
        silent, successor = Supervisor(job_dir), Supervisor(job_dir)
        async with silent.serves() as port, successor.serves() as next_port:
            silent.take_office(port)
            running = asyncio.create_task(runner(job_dir, port).run())
            await silent.runner()
            successor.take_office(next_port)
            (await successor.runner()).send(LEAVE)
            await asyncio.wait_for(running, DEADLINE_S)

    asyncio.run(scene())


def test_a_standby_leaves_when_the_supervisor_is_heard_again(job_dir: Path) -> None:
    """Until then it waits for as long as the lease is renewed: it is its own node that is cut off."""

    async def scene() -> None:
        successor = Supervisor(job_dir)
        successor.take_office(1)
        succession = Succession(job_dir, "slurm-big-7")
        assert succession.welcome(1, 0)
        renewing = asyncio.create_task(renew_again_and_again(job_dir))
        await succession.step_in()
        standby = succession._standby
        assert standby is not None
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(standby.wait(), 3.0)  # twice the lease
        succession.answered()
        assert await asyncio.wait_for(standby.wait(), DEADLINE_S) == 0
        renewing.cancel()
        assert newest_number(job_dir) == 1

    asyncio.run(scene())


async def renew_again_and_again(job_dir: Path) -> None:
    count = 0
    while True:
        count += 1
        renew(job_dir, 1, count)
        await asyncio.sleep(0.1)


def test_a_runner_without_a_supervisor_hands_the_job_back_and_leaves(
    job_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "LEAVE_S", 1.0)
    handed_back_s: list[float] = []

    async def hand_back(succession: Succession) -> None:
        handed_back_s.append(time.monotonic())

    monkeypatch.setattr(Succession, "abandon", hand_back)
    with socket.socket() as nobody:  # bound and not listening: every connection is refused
        nobody.bind(("127.0.0.1", 0))
        begun_s = time.monotonic()
        asyncio.run(runner(job_dir, nobody.getsockname()[1]).run())
    assert len(handed_back_s) == 1 and handed_back_s[0] - begun_s >= 1.0


class AwayAtFirst:
    """A Slurm whose controller is away for a while, and which refuses the first requeue after that."""

    def __init__(self, job_dir: Path, *, is_renewed: bool) -> None:
        self._job_dir = job_dir
        self._is_renewed = is_renewed
        self.asked: list[str] = []

    def run(self, argv: Sequence[str], **_: Any) -> Result:
        self.asked.append(argv[1])
        text = "JobId=7 JobName=j UserId=u(1) JobState=RUNNING Restarts=0 Partition=train NumNodes=3"
        result = Result(argv=tuple(argv), returncode=0, stdout=text, stderr="", seconds=0.0)
        if len(self.asked) <= 2 or (self.asked.count("requeue") == 1 and argv[1] == "requeue"):
            if self._is_renewed:
                threading.Thread(target=self._renew).start()
            raise CommandError(result, "Unable to contact slurm controller")
        return result

    def _renew(self) -> None:
        for count in range(20):
            renew(self._job_dir, 1, count)
            time.sleep(0.1)


@pytest.mark.parametrize("is_renewed", [False, True], ids=["alone", "a supervisor is heard again"])
def test_a_job_without_a_supervisor_is_handed_back_once_slurm_answers(
    job_dir: Path, monkeypatch: pytest.MonkeyPatch, is_renewed: bool
) -> None:
    slurm = AwayAtFirst(job_dir, is_renewed=is_renewed)
    env = {"SLURM_CLUSTER_NAME": "big", "SLURM_JOB_ID": "7", "SLURM_JOB_PARTITION": "train"}
    env |= {"SLURM_JOB_NODELIST": "n[1-3]", "SLURMD_NODENAME": "n1"}
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("slurm.Slurm", lambda: Slurm(run=slurm.run))
    monkeypatch.setattr(succession_module, "LEASE_S", 0.3)
    monkeypatch.setattr(succession_module, "RENEW_S", 0.05)
    for module in (requeue, slurm_requeue):
        monkeypatch.setattr(module, "ASK_AGAIN_S", 0.01)
    asyncio.run(Succession(job_dir, "slurm-big-7").abandon())
    expected = ["show"] if is_renewed else ["show", "show", "show", "requeue", "show", "requeue"]
    assert slurm.asked == expected


def test_a_standby_outlives_the_sigint_that_slurm_sends_to_every_process_of_a_step(
    job_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """From its first moment on, and when it supervises: nobody has asked to cancel the job."""

    async def scene() -> None:
        Supervisor(job_dir).take_office(1)
        succession = Succession(job_dir, "slurm-big-7")
        assert succession.welcome(1, turn=0)
        before = set(children(os.getpid()))
        await succession.step_in()
        (standby,) = set(children(os.getpid())) - before
        os.kill(standby, signal.SIGINT)
        await asyncio.wait_for(succession.close(), DEADLINE_S)

    asyncio.run(scene())
    assert "the supervisor of term 1 is alive" in capfd.readouterr().err
