"""Runs the user's script in a worker, as `python script.py ARGS` would, in a process that has torch loaded.

Or a module, as `python -m` would; or another program, which takes the place of the worker.
"""

from __future__ import annotations

import atexit
import builtins
import io
import os
import re
import runpy
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from holdfast.base.processes import die_with_parent
from launcher.job.module_names import give_back
from launcher.runner.collectives import answer_collective_requests, recorder_variables
from launcher.runner.last_words import LastWords
from launcher.runner.stacks import answer_stack_requests
from launcher.runner.step_signals import leave_signals_to_the_rank
from launcher.runner.trackers import tracker_variables

# With -X frozen_modules=off runpy is in a file, and so prints its lines.
_RUNPY_FRAMES = re.compile(r'(?:  File "(?:<frozen runpy>|[^"]*/runpy\.py)", .*\n(?:    .*\n)*)+')
ENDING_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})


def run_script(task: dict[str, Any], agent_pid: int, last_words: Sequence[LastWords]) -> None:
    """Runs the script to its end; the exit code of this process is the result.

    Args:
        task: the attempt as given to the warm process.
        agent_pid: pid of the parent process.
        last_words: memory for the end of stderr, for each of the node's workers.
    """
    die_with_parent(agent_pid)
    # When Slurm requeues the job, it sends SIGTERM to every process of a step. The agreed stop ends the worker, not
    # the signal. Torch elastic's handlers are removed too, because a script's handler may call the previous one.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)
    _redirect_output(
        Path(task["log_dir"]) / f"rank-{os.environ['RANK']}.log", last_words[int(os.environ["LOCAL_RANK"])]
    )
    os.environ |= {  # torch elastic does not restart workers, and each attempt has a rendezvous of its own
        "TORCHELASTIC_RESTART_COUNT": str(task["attempt"]),
        "TORCHELASTIC_MAX_RESTARTS": str(task["max_restarts"]),
        "TORCHELASTIC_RUN_ID": task["run_id"],
    }
    os.environ |= tracker_variables(os.environ)
    os.environ |= recorder_variables(os.environ, import_module("torch").__version__)  # a runner imports this module
    if task["command"]:
        _become([*task["command"], *task["args"]])
    leave_signals_to_the_rank()
    if port := os.environ.get("MASTER_PORT"):
        # Spawned processes import it by this name. Modules of the script may have the names of the other packages.
        import_module("holdfast.own_rendezvous").serve_other_ports(int(port))
    answer_stack_requests()
    answer_collective_requests()
    if task["measure_steps"]:
        _measure_steps()
    script, module = task["script"], task["module"]
    sys.argv = [script or module, *task["args"]]
    sys.path.insert(0, os.path.dirname(script) if script else os.getcwd())
    give_back()
    try:
        _run_as_main(script) if script else _run_module_as_main(module)
    except SystemExit as end:
        if isinstance(end.code, int):
            end.code &= 0xFF  # as the kernel does; os._exit refuses numbers that do not fit into a C int
        if end.code not in (None, 0):
            raise
    except (Exception, KeyboardInterrupt) as error:
        print(script_traceback(traceback.format_exc(), script), file=sys.stderr, end="")
        if isinstance(error, KeyboardInterrupt):  # above this frame it would pass as a success
            _finish()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.raise_signal(signal.SIGINT)
        raise
    finally:
        _finish()
    os._exit(0)


def _measure_steps() -> None:
    """Goes on without where another torch lacks one of the private names that are wrapped, and says so."""
    try:
        import_module("launcher.runner.step_hooks").measure_steps()  # a runner imports this module, without torch
    except (ImportError, AttributeError) as error:
        print(f"holdfast: steps are not measured, and no slow rank is named: {error}", file=sys.stderr)


def script_traceback(text: str, script: str | None) -> str:
    """A traceback without the frames above the script, or above the module that runpy runs."""
    first_line, _, frames = text.partition("\n")
    if script is None:
        found = _RUNPY_FRAMES.search(frames)
        return f"{first_line}\n{frames[found.end() :]}" if found else text
    _, frame, rest = frames.partition(f'  File "{script}"')
    return f"{first_line}\n{frame}{rest}" if frame else text


def _become(argv: list[str]) -> None:
    """Replaces this process by a program. Signals that are ignored here stay ignored there.

    Raises:
        SystemExit: it cannot be started; with a shell's exit codes.
    """
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        print(f"{argv[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)


def _run_as_main(script: str) -> None:
    """Runs a script as the module __main__. The module is kept, because the destructor of a model may never return."""
    loader = SourceFileLoader("__main__", script)
    main = ModuleType("__main__")
    main.__dict__.update(__file__=script, __cached__=None, __loader__=loader, __builtins__=builtins)
    sys.modules["__main__"] = main
    exec(loader.source_to_code(loader.get_data(script), script), main.__dict__)


def _run_module_as_main(name: str) -> None:
    """Runs a module as the module __main__, as `python -m` does."""
    sys.modules["__main__"] = ModuleType("__main__")
    runpy._run_module_as_main(name)  # type: ignore[attr-defined]


class _Output(io.FileIO):
    """A log that never fails.

    If it cannot be written (disk full, read-only file system), output is lost, and training continues.
    """

    def __init__(self, fd: int, last_words: LastWords | None) -> None:
        super().__init__(fd, "w", closefd=False)
        self._last_words = last_words

    def write(self, data: Any) -> int:
        if self._last_words is not None:
            self._last_words.write(bytes(data))
        try:
            return super().write(data)
        except OSError:
            return len(data)


def _redirect_output(path: Path, last_words: LastWords) -> None:
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(io.BufferedWriter(_Output(fd, words)), errors="backslashreplace", line_buffering=True)
        for fd, words in ((1, None), (2, last_words))
    )


def _finish() -> None:
    """The interpreter's shutdown, which a forked process would skip."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are no daemons, executors' too
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        _flush(stream)


def _flush(stream: Any) -> None:
    """Flushes stdout or stderr at the end. The script may have closed it, or put an object of its own in its place."""
    if stream is None or getattr(stream, "closed", False):
        return
    try:
        stream.flush()
    except Exception:  # the training is done; the error must not make it count as failed
        os.write(2, f"ignored at the end of the script: {traceback.format_exc()}".encode(errors="backslashreplace"))
