"""A script runs as `python script.py` would run it; users see their frames of an exception, not ours."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.runner.script import script_traceback

RUN = """
import multiprocessing, os, signal, sys
from launcher.runner.last_words import LastWords
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):  # as torch elastic's agent has it
    signal.signal(number, lambda *_: sys.exit("torch's handler"))
from launcher.runner.script import run_script
words = LastWords()
rank = multiprocessing.get_context("fork").Process(target=run_script, args=({task!r}, os.getpid(), [words]))
rank.start()
rank.join()
print(words.read(), end="")
sys.exit(rank.exitcode)
"""


def run_as_rank(folder: Path, script: str) -> tuple[int, list[str]]:
    """Runs a script as rank 0; its exit code, and the lines of its log."""
    done = rank_that_ran(folder, script)
    return done.returncode, (folder / "rank-0.log").read_text().splitlines()


def rank_that_ran(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Runs a script as rank 0; its last words are the stdout."""
    path = folder / "script.py"
    path.write_text(script)
    task = {"script": str(path), "args": ["x"], "log_dir": str(folder), "attempt": 2, "max_restarts": 5}
    argv = [sys.executable, "-c", RUN.format(task=task)]
    env = os.environ | {"RANK": "0", "LOCAL_RANK": "0", "HOLDFAST_RUN_ID": "local-7"}
    return subprocess.run(argv, check=False, timeout=120, env=env, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("end", ["", "sys.exit()", "sys.exit(main())", "raise SystemExit(3)"])
def test_nothing_of_a_script_is_destroyed_at_its_end(tmp_path: Path, end: str) -> None:
    """A model's destructor may stand still for ever."""
    script = f"""
import sys
class Model:
    def __del__(self):
        print("destroyed", flush=True)
model = Model()
def main(): pass
print("done")
{end}
"""
    assert run_as_rank(tmp_path, script) == (3 if "3" in end else 0, ["done"])


@pytest.mark.parametrize(
    ("end", "code", "words"),
    [
        ("sys.exit('boom')", 1, "boom"),
        ("sys.stderr.write('no data\\n'); sys.exit(3)", 3, "no data"),
        ("sys.stderr.write('no data\\n'); os._exit(4)", 4, "no data"),
        ("sys.stderr.write('line\\n' * 9999); print('x'); sys.exit(3)", 3, "\n".join(["line"] * 8)),
        ("sys.stderr.write('\\r 1%\\r 2%\\n\\n'); sys.exit(3)", 3, " 2%"),
        ("print('out'); sys.exit(3)", 3, "None"),
    ],
)
def test_the_end_of_stderr_survives_a_script(tmp_path: Path, end: str, code: int, words: str) -> None:
    done = rank_that_ran(tmp_path, f"import os, sys\n{end}")
    assert (done.returncode, done.stdout) == (code, words)


def test_a_script_that_is_interrupted_has_not_ended_well(tmp_path: Path) -> None:
    """As by `scancel --signal=INT`."""
    script = """
import atexit, os, signal
atexit.register(print, "atexit")
os.kill(os.getpid(), signal.SIGINT)
"""
    done = rank_that_ran(tmp_path, script)
    assert done.returncode == 256 - signal.SIGINT
    assert done.stdout.endswith("KeyboardInterrupt") and "script.py" in done.stdout and "runpy" not in done.stdout
    assert (tmp_path / "rank-0.log").read_text().endswith("KeyboardInterrupt\natexit\n")


def test_a_script_finds_no_handlers_of_torch_elastics_and_the_number_of_restarts(tmp_path: Path) -> None:
    script = """
import os, signal
for name in ("SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT"):
    print(name, signal.getsignal(getattr(signal, name)) in (signal.SIG_IGN, signal.SIG_DFL, signal.default_int_handler))
print(os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["TORCHELASTIC_MAX_RESTARTS"])
"""
    named = [f"{name} True" for name in ("SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT")]
    assert run_as_rank(tmp_path, script) == (0, [*named, "2 5"])


def test_threads_of_a_script_end_before_it_does(tmp_path: Path) -> None:
    """As `python script.py` waits for them: one may be writing a checkpoint."""
    script = """
import atexit, threading, time
from concurrent.futures import ThreadPoolExecutor
def write(name):
    time.sleep(0.2)
    print(name, flush=True)
ThreadPoolExecutor().submit(write, "executor")
threading.Thread(target=write, args=["thread"]).start()
threading.Thread(target=time.sleep, args=[600], daemon=True).start()
atexit.register(print, "atexit")
"""
    code, lines = run_as_rank(tmp_path, script)
    assert (code, sorted(lines[:2]), lines[2:]) == (0, ["executor", "thread"], ["atexit"])


def test_a_script_is_the_main_module(tmp_path: Path) -> None:
    script = """'The docstring.'
import inspect, multiprocessing, os, pickle, sys
class State: pass
def double(n): return 2 * n
if __name__ == "__main__":
    import __main__
    assert isinstance(pickle.loads(pickle.dumps(State())), State) and __main__.State is State
    print(__doc__, sys.argv == [__file__, "x"], __spec__, __package__, inspect.getsource(double).strip())
    assert sys.path[0] == os.path.dirname(__file__)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(double, [21]))
"""
    words = "The docstring. True None None def double(n): return 2 * n"
    assert run_as_rank(tmp_path, script) == (0, [words, "[42]"])


TALKER = """
import sys
from pathlib import Path
from launcher.runner.last_words import LastWords
from launcher.runner.script import _redirect_output
_redirect_output(Path("/dev/full"), LastWords())
for _ in range(10_000):
    print("a line that has nowhere to go")
sys.stderr.write("neither has this")
sys.stdout.flush()
sys.exit(7)
"""


def test_a_log_that_cannot_be_written_does_not_stop_the_script() -> None:
    assert subprocess.run([sys.executable, "-c", TALKER], check=False, timeout=60).returncode == 7


def test_frames_that_lead_to_the_script_are_left_out() -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "/lib/launcher/runner/script.py", line 36, in run_script\n'
        '    runpy.run_path(script, run_name="__main__")\n'
        '  File "/job/train.py", line 3, in <module>\n'
        "    boom()\n"
        "ValueError: 1\n"
    )
    shown = script_traceback(text, "/job/train.py")
    assert shown == (
        'Traceback (most recent call last):\n  File "/job/train.py", line 3, in <module>\n    boom()\nValueError: 1\n'
    )


def test_traceback_without_the_script_stays_whole() -> None:
    text = 'Traceback (most recent call last):\n  File "x.py", line 1\nSyntaxError: bad\n'
    assert script_traceback(text, "/job/train.py") == text


def test_a_script_finds_the_run_that_its_tracker_continues(tmp_path: Path) -> None:
    script = "import os; print(os.environ['WANDB_RUN_ID'], os.environ['WANDB_RESUME'])"
    assert run_as_rank(tmp_path, script) == (0, ["local-7 allow"])
