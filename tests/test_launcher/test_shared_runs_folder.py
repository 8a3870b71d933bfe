"""Another user who can write near a job's folder gets nothing to run as the job's user, and reads no secret of it."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher import Executor, Torchrun
from launcher.errors import LauncherError, UsageError
from launcher.submission.batch import main
from launcher.submission.request import check_private, make_folder, wait_for_request, write_request
from slurm.testbed.plan import account

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="acts as two users")

STRANGER = account("daemon").pw_uid


def as_stranger(script: str, cwd: Path) -> int:
    """A shell script of the other user; its exit code."""
    done = subprocess.run(
        ["/bin/sh", "-c", script], cwd=cwd, user=STRANGER, group=STRANGER, extra_groups=[], check=False,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    return done.returncode


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The victim's folder, under a umask that gives everybody everything."""
    for level in (tmp_path, *tmp_path.parents):  # pytest's own are for root alone
        if level.stat().st_mode & 0o005 != 0o005:
            level.chmod(0o755)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    umask = os.umask(0)
    yield tmp_path
    os.umask(umask)


def sbatch(home: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    (home / "bin").mkdir(mode=0o755)
    for name, text in (
        ("sbatch", answer),
        ("scancel", "exit 0"),
        ("squeue", "echo '42|COMPLETED|'"),
        ("scontrol", "exit 1"),
    ):
        (home / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (home / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{home / 'bin'}:/usr/bin:/bin")


def test_all_that_a_submission_writes_is_its_users_alone(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """sbatch looks at the drafts, as they lie there while it runs."""
    look = f"find {home}/runs ! -type d -printf '%m %f\\n' > {home}/drafts; echo Submitted batch job 42"
    sbatch(home, monkeypatch, look)
    job = Executor(cluster="slurm").submit(Torchrun("train.py", env={"TOKEN": "hunter2"}))
    drafts = (home / "drafts").read_text().split()
    assert drafts[0] == "600" and len(drafts) == 2
    for path in (home / "runs").rglob("*"):
        private = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) & ~private == 0, path
        assert path.suffix != ".pkl"
    assert stat.S_IMODE((home / "runs").stat().st_mode) == 0o755
    assert "hunter2" in (job.paths.folder / "submission.json").read_text()
    assert as_stranger(f"grep -r hunter2 {home / 'runs'}", Path("/")) != 0
    assert as_stranger(f"mv {job.paths.folder} {home / 'runs/away'}", Path("/")) != 0


def test_a_runs_folder_that_others_may_write_is_refused_before_anything_is_submitted(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sbatch(home, monkeypatch, "echo Submitted batch job 42")
    (home / "runs").mkdir(mode=0o777)
    with pytest.raises(UsageError, match=r"runs: mode 777 .*`chmod go-w` it"):
        Executor(cluster="slurm")
    assert list((home / "runs").iterdir()) == []


def others(folder: Path) -> None:
    os.chown(folder, STRANGER, STRANGER)


SHARED: dict[str, Callable[[Path], None]] = {
    "that all may write": lambda folder: folder.chmod(0o777),
    "of a group": lambda folder: (os.chown(folder, 0, STRANGER), folder.chmod(0o2775)),  # type: ignore[list-item,return-value]
    "of another user": others,
}


@pytest.mark.parametrize("how", SHARED)
@pytest.mark.parametrize("level", ["runs/42", "runs", "."])
def test_the_batch_script_refuses_what_a_stranger_may_have_swapped(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], level: str, how: str
) -> None:
    """The stranger puts a folder with a job of their own in the place of one that waits in the queue."""
    job_dir = home / "runs/42"
    make_folder(home / "runs")
    job_dir.mkdir(mode=0o700)
    write_request(job_dir, {"script": str(home / "train.py"), "name": "gpt"}, "local")
    check_private(job_dir)
    SHARED[how](home / level)
    if how == "that all may write" and level == "runs":
        assert as_stranger("mv 42 away && mkdir -m 777 42 && cp /etc/passwd 42/submission.json", home / "runs") == 0
    import launcher.supervisor as supervisor

    monkeypatch.setattr(supervisor, "supervise", lambda *_: pytest.fail("it was run"))
    assert main("local", str(home / "runs/42")) == 1
    assert "other users could put another job there" in capsys.readouterr().err


def test_a_request_of_another_user_is_refused_though_its_folder_is_ours(home: Path) -> None:
    folder = home / "42"
    folder.mkdir(mode=0o700)
    write_request(folder, {"script": "train.py"}, "slurm")
    others(folder / "submission.json")
    with pytest.raises(LauncherError, match=f"of uid {STRANGER}, expected a file of uid 0"):
        wait_for_request(folder)


def test_a_planted_pickle_is_not_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by the batch script nor by who asks for the result."""
    sbatch(home, monkeypatch, "echo Submitted batch job 42")
    job = Executor(cluster="slurm").submit(Torchrun("train.py"))
    for path in (job.paths.submitted_pickle, job.paths.result_pickle):
        path.write_bytes(b"cposix\nsystem\n(S'touch " + str(home / "ran").encode() + b"'\ntR.")
    result = {"name": "done", "step": 7, "exit_code": 0, "reason": "", "seconds": 1.0, "run_id": "r"}
    (job.paths.folder / "result.json").write_text(json.dumps(result))
    assert job.result()["step"] == 7 and job.submission().function.name == "train"
    assert not (home / "ran").exists()


def test_a_private_group_and_a_sticky_parent_are_no_reason_to_refuse(tmp_path: Path) -> None:
    """As root's own group is: the umask 002 of many sites shares nothing with it."""
    (tmp_path / "sticky").mkdir()
    (tmp_path / "sticky").chmod(0o1777)
    (tmp_path / "sticky/runs").mkdir()
    (tmp_path / "sticky/runs").chmod(0o775)
    check_private(tmp_path / "sticky/runs")
