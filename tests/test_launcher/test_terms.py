"""Terms and the lease: who supervises, decided by files alone; clocks are injected."""

from __future__ import annotations

import asyncio
import errno
import shutil
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from launcher.history.events import EventLog
from launcher.leadership.lease import FolderRemovedError, Leadership, Superseded
from launcher.leadership.terms import LEASE_S, RENEW_S, LeaseWatch, Term, claim, newest, newest_number, renew
from launcher.supervisor import standby
from launcher.supervisor.folder import until_written
from launcher.supervisor.standby import RESTARTED_S, Absence, may_take_over


def term(number: int, node: str = "n1") -> Term:
    return Term(number=number, run_id="run", node=node, host=node, port=7, pid=1)


class Clock:
    """Seconds that pass only in sleep(); `meanwhile` is called before each."""

    def __init__(self, meanwhile: Any = lambda now_s: None) -> None:
        self.now_s = 0.0
        self._meanwhile = meanwhile

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self._meanwhile(self.now_s)


def test_of_many_who_claim_a_term_one_has_it(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        won = list(pool.map(lambda index: claim(tmp_path, term(1, f"n{index}")), range(64)))
    assert won.count(True) == 1
    ruling = newest(tmp_path)
    assert ruling is not None and ruling.node == f"n{won.index(True)}"
    assert [path.name for path in (tmp_path / "terms").iterdir()] == ["000001.json"]


def test_standby_takes_over_when_the_lease_has_stood_still_long_enough(tmp_path: Path) -> None:
    claim(tmp_path, term(1))
    renew(tmp_path, 1, 5)
    clock = Clock()
    assert may_take_over(tmp_path, 1, LeaseWatch(tmp_path, clock), sleep=clock.sleep)
    assert clock.now_s >= LEASE_S


def test_standby_leaves_a_supervisor_alone_that_renews_its_lease(tmp_path: Path) -> None:
    claim(tmp_path, term(1))
    renew(tmp_path, 1, 5)
    clock = Clock(lambda now_s: renew(tmp_path, 1, int(now_s / RENEW_S)))
    heard = lambda: clock.now_s > 10 * LEASE_S  # noqa: E731
    assert not may_take_over(tmp_path, 1, LeaseWatch(tmp_path, clock), is_reached=heard, sleep=clock.sleep)
    assert clock.now_s > 10 * LEASE_S, "it had left before the supervisor was heard again"


def test_a_lease_has_not_run_out_because_we_stood_still(tmp_path: Path) -> None:
    """As a frozen process, or a file system that hangs for everybody: the supervisor had no chance to renew."""
    claim(tmp_path, term(1))
    clock = Clock()
    lease = LeaseWatch(tmp_path, clock)
    clock.sleep(60.0)
    assert lease.quiet_s() < LEASE_S
    clock.sleep(RENEW_S)
    assert lease.quiet_s() < LEASE_S


def test_a_lease_that_cannot_be_read_has_not_run_out(tmp_path: Path) -> None:
    claim(tmp_path, term(1))
    (tmp_path / "lease").mkdir()  # reading a directory fails, and not because nothing is there
    clock = Clock()
    lease = LeaseWatch(tmp_path, clock)
    for _ in range(20):
        clock.sleep(RENEW_S)
        assert lease.quiet_s() == 0.0
    (tmp_path / "lease").rmdir()
    renew(tmp_path, 1, 1)
    assert lease.quiet_s() == 0.0
    clock.sleep(RENEW_S)
    assert lease.quiet_s() == RENEW_S


@pytest.mark.parametrize("what", ["another took over", "the job has ended"])
def test_standby_leaves_when_there_is_nothing_to_take_over(tmp_path: Path, what: str) -> None:
    claim(tmp_path, term(1))

    def meanwhile(now_s: float) -> None:
        if what == "the job has ended":
            (tmp_path / "result.json").touch()
        elif newest_number(tmp_path) == 1:
            claim(tmp_path, term(2))

    clock = Clock(meanwhile)
    assert not may_take_over(tmp_path, 1, LeaseWatch(tmp_path, clock), sleep=clock.sleep)


def test_standby_takes_over_at_once_where_the_supervisor_is_certainly_gone(tmp_path: Path) -> None:
    claim(tmp_path, term(1))
    clock = Clock()
    assert may_take_over(tmp_path, 1, LeaseWatch(tmp_path, clock), lambda: True, sleep=clock.sleep)
    assert clock.now_s == 0.0


@pytest.mark.parametrize(("later", "takes_over"), [([], False), ([{"event": "node_back", "node": "n2"}], True)])
def test_standby_of_a_node_that_is_out_does_not_take_over(
    tmp_path: Path, later: list[dict[str, Any]], takes_over: bool
) -> None:
    """The supervisor ends for a requeue: that looks like its loss. The job's next start takes the next term."""
    claim(tmp_path, term(1))
    log = EventLog(tmp_path / "events.jsonl")
    for event in [{"event": "node_out", "node": "n2", "lost": True}, *later]:
        log.append(**event)
    log.close()
    clock = Clock(lambda now_s: now_s > 60.0 and claim(tmp_path, term(2)))
    is_out = lambda: standby._is_out(tmp_path, "n2")  # noqa: E731
    lease = LeaseWatch(tmp_path, clock)
    assert may_take_over(tmp_path, 1, lease, is_out=is_out, sleep=clock.sleep) is takes_over


def test_a_supervisor_that_is_gone_was_followed_by_another_all_the_same(tmp_path: Path) -> None:
    claim(tmp_path, term(1))
    claim(tmp_path, term(2))
    clock = Clock()
    assert not may_take_over(tmp_path, 1, LeaseWatch(tmp_path, clock), lambda: True, sleep=clock.sleep)


def test_a_supervisor_whose_host_refuses_connections_is_gone_once_its_keeper_had_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        clock = Clock()
        absence = Absence(Term(number=1, run_id="run", node="n1", host=host, port=port, pid=1), clock)
        clock.now_s = 100.0
        absence.look()
        assert not absence.is_certain(), "somebody listens"
    absence.look()
    assert not absence.is_certain(), "the batch script there may be about to start the next one"
    clock.now_s += RESTARTED_S
    absence.look()
    assert absence.is_certain() and not absence.is_silent, "its host lives"


@pytest.mark.parametrize(
    ("error", "is_gone"),
    [
        (TimeoutError("timed out"), True),
        (OSError(errno.EHOSTUNREACH, "No route to host"), True),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), False),
        (socket.gaierror(socket.EAI_AGAIN, "no name server"), False),
    ],
)
def test_a_host_that_cannot_be_reached_is_gone_unless_it_is_we_who_are_cut_off(
    error: OSError, is_gone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(address: object, timeout: float) -> socket.socket:
        raise error

    monkeypatch.setattr(socket, "create_connection", connect)
    absence = Absence(term(1))
    assert not absence.is_certain(), "nobody has looked"
    absence.look()
    assert absence.is_certain() == absence.is_silent == is_gone


def leadership(job_dir: Path, node: str) -> Leadership:
    return Leadership(job_dir, run_id="run", node=node, host=node)


def test_of_successors_at_once_one_takes_leadership(tmp_path: Path) -> None:
    claim(tmp_path, term(1))

    def takes(index: int) -> bool:
        try:
            leadership(tmp_path, f"n{index}").take(1, after=1)
        except Superseded:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(takes, range(2, 34))).count(True) == 1
    assert newest_number(tmp_path) == 2


def test_a_supervisor_that_does_not_see_the_folder_waits_before_it_ends_or_requeues_the_job(tmp_path: Path) -> None:
    """Others may see it, and have taken over."""
    cut_off = leadership(tmp_path, "n1")
    cut_off.take(1, after=None)
    cut_off.confirm()
    (tmp_path / "terms").rename(tmp_path / "away")
    (tmp_path / "terms").touch()
    cut_off.check()  # events may be written: they do not count if another rules
    asked: list[bool] = []

    def is_given_up() -> bool:  # asked between one try and the next
        asked.append(True)
        if len(asked) == 2:
            (tmp_path / "terms").unlink()
            (tmp_path / "away").rename(tmp_path / "terms")
            leadership(tmp_path, "n2").take(2, after=1)
        return False

    with pytest.raises(Superseded, match="term 2 rules, ours is 1"):
        asyncio.run(until_written(cut_off.confirm, timeout_s=30, give_up=is_given_up))
    assert len(asked) == 2


def test_a_term_that_was_removed_from_the_folder_is_written_again(tmp_path: Path) -> None:
    ruling = leadership(tmp_path, "n1")
    (tmp_path / "secret").touch()
    ruling.take(1, after=None)
    shutil.rmtree(tmp_path / "terms")
    ruling.confirm()
    found = newest(tmp_path)
    assert found is not None and (found.number, found.node) == (1, "n1")


def test_a_folder_that_was_removed_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    ruling = leadership(tmp_path / "job", "n1")
    ruling.take(1, after=None)
    shutil.rmtree(tmp_path / "job")
    with pytest.raises(FolderRemovedError, match="removed while the job ran"):
        asyncio.run(until_written(ruling.confirm, timeout_s=30, give_up=lambda: False))
    (tmp_path / "job").mkdir()  # by the script, say
    with pytest.raises(FolderRemovedError, match="removed while the job ran"):
        ruling.check()


def test_a_folder_that_was_removed_with_those_above_it_is_the_same_error(tmp_path: Path) -> None:
    (tmp_path / "runs" / "gpt" / "job").mkdir(parents=True)
    ruling = leadership(tmp_path / "runs" / "gpt" / "job", "n1")
    ruling.take(1, after=None)
    shutil.rmtree(tmp_path / "runs")
    with pytest.raises(FolderRemovedError, match="removed while the job ran"):
        ruling.confirm()


def test_a_file_system_that_is_away_is_no_removed_folder(tmp_path: Path) -> None:
    """The mount point's own device shows then, without our folder."""
    (tmp_path / "share" / "job").mkdir(parents=True)
    mount = tmp_path / "mount"
    mount.symlink_to(tmp_path / "share")
    ruling = leadership(mount / "job", "n1")
    ruling.take(1, after=None)
    mount.unlink()
    mount.symlink_to("/proc")
    with pytest.raises(OSError, match="our term is not there"):
        ruling.confirm()


def test_supervisor_that_finds_a_higher_term_is_superseded(tmp_path: Path) -> None:
    first, second = leadership(tmp_path, "n1"), leadership(tmp_path, "n2")
    first.take(1, after=None)
    first.check()
    second.take(2, after=1)
    second.check()
    late = leadership(tmp_path, "n3")
    with pytest.raises(Superseded, match="term 2 was taken"):
        late.take(3, after=1)
    frozen = leadership(tmp_path, "n1")  # checks at once, as one does that has been stopped for a while
    frozen.term = 1
    with pytest.raises(Superseded, match="term 2 rules, ours is 1"):
        frozen.check()
