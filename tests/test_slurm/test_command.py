from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from waiting import until

from slurm.command import CommandError, run


def test_returns_what_a_program_said() -> None:
    done = run(["sh", "-c", "cat; echo bad >&2; exit 3"], input="in", check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "in", "bad\n")


def test_a_failure_names_command_code_and_words() -> None:
    with pytest.raises(CommandError, match=r"sh -c 'echo no luck >&2; exit 3': exit code 3: no luck$") as caught:
        run(["sh", "-c", "echo no luck >&2; exit 3"])
    assert caught.value.result.returncode == 3


def test_a_machine_without_slurm_conf_is_told_where_to_name_it() -> None:
    said = "echo 'scontrol: fatal: Could not establish a configuration source' >&2; exit 1"
    with pytest.raises(CommandError, match=r"source; name the cluster's slurm\.conf in SLURM_CONF$"):
        run(["sh", "-c", said])


def test_a_signal_is_named() -> None:
    with pytest.raises(CommandError, match="signal SIGKILL"):
        run(["sh", "-c", "kill -9 $$"])


def test_a_program_that_is_not_there_is_one_line() -> None:
    with pytest.raises(CommandError, match=r"\(No such file or directory\); is /no-such-program installed here\?$"):
        run(["/no-such-program"])


def test_a_program_that_does_not_end_is_killed_with_its_children(tmp_path: Path) -> None:
    children = "import subprocess, os; p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True); p.wait()"
    with pytest.raises(CommandError, match=r"no answer within 0\.5 s") as caught:
        run([sys.executable, "-S", "-c", children], timeout_s=0.5)
    state = Path(f"/proc/{caught.value.result.stdout.strip()}/stat")

    def has_ended() -> bool:
        try:
            return state.read_text().split()[2] == "Z"
        except OSError:
            return True

    until(has_ended)  # it was killed, and dies when the kernel comes to it


def test_a_program_that_cannot_be_killed_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that hangs in the kernel on a dead mount: SIGKILL has no effect on it."""
    killed: list[int] = []
    kill = os.killpg
    monkeypatch.setattr(os, "killpg", lambda group, signal: killed.append(group))
    start_s = time.monotonic()
    try:
        with pytest.raises(CommandError, match=r"no answer within 0\.2 s"):
            run(["sleep", "30"], timeout_s=0.2)
        assert time.monotonic() - start_s < 20
    finally:
        for group in killed:
            with contextlib.suppress(ProcessLookupError):
                kill(group, signal.SIGKILL)
                os.waitpid(group, 0)


def test_undecodable_output_is_no_error() -> None:
    assert run(["printf", "\\377ok"]).stdout == "\ufffdok"


def test_env_and_directory_are_the_programs_own(tmp_path: Path) -> None:
    assert run(["/bin/sh", "-c", "echo $ONE; pwd"], env={"ONE": "1"}, cwd=tmp_path).stdout == f"1\n{tmp_path}\n"
