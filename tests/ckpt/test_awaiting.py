"""Storage that keeps silent: the verbs of `holdfast ckpt` say what they wait for, and Ctrl-C ends them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import waiting
from test_cli_ckpt import run
from test_tiers import commit, save_id, shard

from ckpt.cli import app as cli
from ckpt.cli import rebuild as cli_rebuild
from ckpt.cli import silent_storage as awaiting
from ckpt.cli import verbs
from ckpt.format.shard_record import write_record
from ckpt.tiers.posix import SharedTier

HUNG_MOUNT = Path(__file__).parents[1] / "lifecycle" / "hung_mount.py"


@pytest.fixture
def tier(tmp_path: Path) -> SharedTier:
    tier = SharedTier(tmp_path / "here", "ns")
    tier.prepare()
    commit(tier, save_id(3))
    (ram := tier.folder / "ram").mkdir()
    record, data = shard(save_id(7), 0, 1)
    (ram / "own-0-0.data").write_bytes(data)
    write_record(ram, "own-0-0", record)
    return tier


@pytest.mark.skipif(
    os.geteuid() != 0 or not os.access("/dev/fuse", os.W_OK), reason="mounts what does not answer: root, /dev/fuse"
)
@pytest.mark.parametrize(
    ("verb", "where"),
    [
        (lambda hung, good: ["ls", hung], "{hung}"),
        (lambda hung, good: ["verify", hung, "--json"], "{hung}"),
        (lambda hung, good: ["copy", good, hung], "{good} or {hung}"),
        (lambda hung, good: ["rebuild", good, hung, "--into", good], "{hung}"),
        (lambda hung, good: ["rebuild", f"{good}/ram", "--into", hung], "{hung}"),
    ],
    ids=["ls", "verify", "copy", "rebuild", "rebuild into"],
)
def test_a_mount_that_does_not_answer_is_named_and_left_by_ctrl_c(
    tmp_path: Path, tier: SharedTier, verb: Callable[[str, str], list[str]], where: str
) -> None:
    hung = tmp_path / "hung"
    hung.mkdir()
    argv = [sys.executable, "-m", "launcher", "ckpt", *verb(str(hung), str(tier.folder))]
    beside = ["unshare", "-m", "--propagation", "private", sys.executable, str(HUNG_MOUNT), str(hung)]
    with subprocess.Popen([*beside, *argv], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as program:
        assert program.stderr
        (limit := threading.Timer(60, program.kill)).start()  # the mount goes with it
        said = program.stderr.readline()
        assert f"waiting for {where.format(hung=hung, good=tier.folder)}: no answer" in said
        (verb_pid,) = Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split()
        os.kill(int(verb_pid), signal.SIGINT)
        given_up = program.stderr.readline()
        limit.cancel()
        assert f"given up: {where.format(hung=hung, good=tier.folder)} does not answer" in given_up
    assert program.returncode == 130


def test_it_is_said_each_time_that_storage_falls_silent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(awaiting, "_SAY_AFTER_S", 0.2)
    monkeypatch.setattr(awaiting, "_LOOK_EVERY_S", 0.01)
    said = ""

    def is_said(times: int) -> bool:
        nonlocal said
        said += capsys.readouterr().err
        return said.count("waiting for /here: no answer") == times

    with awaiting.awaiting("/here") as hear:
        for times in (1, 2):
            waiting.until(lambda times=times: is_said(times), "the line")
            hear()


def test_bytes_that_come_are_heard(tier: SharedTier, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By every verb that moves some."""
    heard = []

    @contextmanager
    def counted(where: str) -> Iterator[awaiting.Heard]:
        class Counted(awaiting.Heard):
            def __call__(self) -> None:
                heard.append(where)

            def turn_to(self, where: str) -> None:
                pass

        yield Counted(where)

    for module in (cli, verbs, cli_rebuild):
        monkeypatch.setattr(module, "awaiting", counted)
    ram, again = tier.folder / "ram", tmp_path / "again"
    for number, argv in enumerate(
        (["verify", tier.folder], ["copy", tier.folder, tmp_path / "there"], ["rebuild", ram, "--into", again])
    ):
        assert run(*argv).exit_code == 0
        assert len(set(heard)) == number + 1
