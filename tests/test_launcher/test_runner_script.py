"""A script runs as `python script.py` would run it; users see their frames of an exception, not ours."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.runner.script import script_traceback

ROOT = Path(__file__).resolve().parents[2]
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
    return rank_of(folder, script=str(path))


def rank_of(folder: Path, path: Path = ROOT, **program: object) -> subprocess.CompletedProcess[str]:
    """Runs a script, a module or a command as rank 0, in this folder; `path` is searched for modules first."""
    task = {"script": None, "module": None, "command": [], "args": ["x"], "log_dir": str(folder), "attempt": 2}
    task |= {"max_restarts": 5, "run_id": "run-1", "measure_steps": False, **program}
    argv = [sys.executable, "-c", RUN.format(task=task)]
    env = os.environ | {"RANK": "0", "LOCAL_RANK": "0", "HOLDFAST_RUN_ID": "local-7"}
    env["PYTHONPATH"] = f"{path}:{ROOT}"
    return subprocess.run(argv, check=False, timeout=120, env=env, stdout=subprocess.PIPE, text=True, cwd=folder)


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
        ("sys.exit(2**40 + 3)", 3, "None"),  # as the kernel cuts it off
        ("sys.exit(-1)", 255, "None"),
    ],
)
def test_the_end_of_stderr_survives_a_script(tmp_path: Path, end: str, code: int, words: str) -> None:
    done = rank_that_ran(tmp_path, f"import os, sys\n{end}")
    assert (done.returncode, done.stdout) == (code, words)


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("sys.stdout.close(); sys.stderr.close()", "None"),
        ("sys.stdout = sys.stderr = None", "None"),
        ("sys.stdout = open('/dev/full', 'w'); sys.stdout.write('x')", "None"),
        ("class Tee:\n    def flush(self): raise ValueError('closed')\nsys.stdout = Tee()", "None"),
    ],
)
def test_a_script_whose_stdout_cannot_be_flushed_has_ended_well(tmp_path: Path, end: str, words: str) -> None:
    """A logger that replaces stdout may close it at the end of the training."""
    done = rank_that_ran(tmp_path, f"import sys\nprint('trained', flush=True)\n{end}\n")
    assert (done.returncode, done.stdout) == (0, words)
    lines = (tmp_path / "rank-0.log").read_text().splitlines()
    assert lines[0] == "trained" and bool(lines[1:]) == ("Tee" in end or "full" in end)


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
print(*(os.environ[f"TORCHELASTIC_{name}"] for name in ("RESTART_COUNT", "MAX_RESTARTS", "RUN_ID")))
"""
    named = [f"{name} True" for name in ("SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT")]
    assert run_as_rank(tmp_path, script) == (0, [*named, "2 5 run-1"])


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


def test_a_module_runs_as_python_m_would_run_it(tmp_path: Path) -> None:
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "other.py").write_text("answer = 42")
    (package / "train.py").write_text(
        "import os, sys\nfrom .other import answer\n"
        "print(__name__, __package__, __spec__.name, answer, sys.argv[1:], sys.path[0] == os.getcwd())\n"
        "print(sys.argv[0])\nraise ValueError('boom')\n"
    )
    done = rank_of(tmp_path, module="pkg.train")
    assert done.returncode == 1
    lines = (tmp_path / "rank-0.log").read_text().splitlines()
    assert lines[:2] == ["__main__ pkg pkg.train 42 ['x'] True", str(package / "train.py")]
    assert lines[2:4] == ["Traceback (most recent call last):", f'  File "{package}/train.py", line 5, in <module>']


def test_a_package_runs_its_main_and_a_module_that_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__main__.py").write_text("print('main of', __package__)")
    assert rank_of(tmp_path, module="pkg").returncode == 0
    assert (tmp_path / "rank-0.log").read_text() == "main of pkg\n"
    gone = rank_of(tmp_path, module="pkg.gone")
    assert gone.returncode == 1 and gone.stdout.endswith("No module named pkg.gone")


def test_a_command_takes_the_place_of_the_worker(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text('echo "$RANK $TORCHELASTIC_RUN_ID $*"; echo bad >&2; exit 7\n')
    assert rank_of(tmp_path, command=["sh", "run.sh", "a b"]).returncode == 7
    assert (tmp_path / "rank-0.log").read_text().splitlines() == ["0 run-1 a b x", "bad"]


def test_signals_of_slurm_do_not_end_a_command_before_its_ranks_have_stopped(tmp_path: Path) -> None:
    script = "import signal\nprint([signal.getsignal(n).name for n in (signal.SIGTERM, signal.SIGUSR1)])"
    assert rank_of(tmp_path, command=[sys.executable, "-c", script]).returncode == 0
    shown = (tmp_path / "rank-0.log").read_text()
    assert shown.startswith("['SIG_IGN'")


@pytest.mark.parametrize(("name", "code", "words"), [("no-such", 127, "No such file"), ("./plain", 126, "Permission")])
def test_a_command_that_cannot_be_started_is_named(tmp_path: Path, name: str, code: int, words: str) -> None:
    (tmp_path / "plain").touch()
    done = rank_of(tmp_path, command=[name])
    assert done.returncode == code and done.stdout.startswith(f"{name}: {words}")


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


@pytest.mark.parametrize(
    "frames",
    [
        '  File "<frozen runpy>", line 198, in _run_module_as_main\n  File "<frozen runpy>", line 88, in _run_code\n',
        '  File "/lib/runpy.py", line 196, in _run_module_as_main\n    return _run_code(code)\n',
    ],
)
def test_frames_that_lead_to_a_module_are_left_out(frames: str) -> None:
    ours = '  File "/lib/launcher/runner/script.py", line 36, in run_script\n    _run_module_as_main(module)\n'
    theirs = '  File "/job/pkg/train.py", line 3, in <module>\n    boom()\nValueError: 1\n'
    head = "Traceback (most recent call last):\n"
    assert script_traceback(f"{head}{ours}{frames}{theirs}", None) == f"{head}{theirs}"


def test_traceback_without_the_script_stays_whole() -> None:
    text = 'Traceback (most recent call last):\n  File "x.py", line 1\nSyntaxError: bad\n'
    assert script_traceback(text, "/job/train.py") == text


def test_a_script_finds_the_run_that_its_tracker_continues(tmp_path: Path) -> None:
    script = "import os; print(os.environ['WANDB_RUN_ID'], os.environ['WANDB_RESUME'])"
    assert run_as_rank(tmp_path, script) == (0, ["local-7 allow"])


def test_where_torch_lacks_what_measures_steps_the_script_runs_and_its_log_says_so(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import torch.autograd.graph as g; del g._engine_run_backward")
    (tmp_path / "script.py").write_text("print('trained')")
    done = rank_of(tmp_path, script=str(tmp_path / "script.py"), measure_steps=True, path=tmp_path)
    warning, trained = (tmp_path / "rank-0.log").read_text().splitlines()
    assert (done.returncode, trained) == (0, "trained")
    assert warning.startswith("holdfast: steps are not measured, and no slow rank is named: ")
