"""The warm process: has torch loaded, and forks an elastic agent, which forks the workers, within milliseconds.

It reads tasks as JSON lines on stdin and reports on stdout: {"event": "warm"}; or "unfit" {reason} if torch or other
modules of workers cannot be loaded; then, for each attempt, "forked" {session}, "started" {pids} and "ended" {ok,
failures, reason}. It answers a task with "learn" by "learned" {modules, left_out}; see `learned`. The agent leads its
own session, so that all processes of the attempt can be found and ended by it. Each process here dies with its parent.

The import of torch takes seconds, so it happens once, here. This process starts no threads and does not touch a GPU,
because both would make a fork unsafe.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import selectors
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    gc.disable()  # until main() has loaded all: it took a fifth of that time, and found 2 % garbage

try:
    import torch
    from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs

    from launcher.runner.rendezvous import JobRendezvous
except (ImportError, OSError) as error:  # a missing CUDA library is an OSError
    if __name__ == "__main__":
        reason = f"{sys.executable} cannot load torch: {type(error).__name__}: {error}"
        print(json.dumps({"event": "unfit", "reason": reason}), flush=True)
    raise

from ckpt.agent.process.launch import PYTHON
from holdfast.base.environment import Variable
from holdfast.base.processes import adopt_orphans, die_with_parent
from launcher.diagnosis.match import telling
from launcher.runner import extensions, learned
from launcher.runner.last_words import LastWords, end_of
from launcher.runner.learned import Learned
from launcher.runner.log_watch import last_met, tail
from launcher.runner.process_groups import keep_process_groups
from launcher.runner.script import ENDING_SIGNALS, run_script, script_traceback
from launcher.runner.step_signals import WARNINGS

_EXIT_BARRIER_S = 7 * 24 * 3600.0  # the supervisor ends a wait that is in vain
_MONITOR_INTERVAL_S = 0.05
_MOST_LINES = 8  # of a log that rules know
_MOST_CHARS = 16_384  # of an error or a traceback: load_state_dict names each key of a model; the log has all of it
# Modules that training scripts load after `import torch`, up to a second each: optimizers load dynamo at their first
# step.
_PRELOAD = (
    "ckpt.checkpointer",
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
)

_VERSIONS = (sys.version, torch.__version__)

Report = Callable[[dict[str, Any]], None]


def main() -> None:
    """Serves tasks until stdin closes."""
    die_with_parent(int(os.environ[Variable.RUNNER_PID]))
    for ending in ENDING_SIGNALS:
        signal.signal(ending, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)  # the runner blocked them while torch was loaded
    for warning in WARNINGS:  # as in the runner; a script may set its own handler
        signal.signal(warning, signal.SIG_IGN)
    tasks, reports = os.dup(0), os.dup(1)
    with open(os.devnull) as null:
        os.dup2(null.fileno(), 0)
    os.dup2(2, 1)
    for module in _PRELOAD:
        try:
            importlib.import_module(module)
        except (ImportError, OSError) as error:
            problem = f"{sys.executable} cannot load {module}: {type(error).__name__}: {error}"
            _write_line(reports, {"event": "unfit", "reason": problem})
            raise
    list_path, *given = sys.argv[1:] or [""]
    if reason := _preload(*given):
        _write_line(reports, {"event": "unfit", "reason": reason})
        sys.exit(1)
    folders = [*given[:1], os.getcwd()]
    if list_path and (changed := _load_learned(Path(list_path), folders)):
        Path(list_path).unlink(missing_ok=True)
        print(f"preload: the modules of {list_path} {changed}: the process starts again without them", file=sys.stderr)
        os.dup2(tasks, 0)
        os.dup2(reports, 1)
        os.execv(sys.executable, [*PYTHON, "-m", "launcher.runner.warm", "", *given])
    keep_process_groups()
    adopt_orphans()
    gc.freeze()  # loaded objects stay shared with the forks
    gc.enable()
    _Warm(tasks, reports, Path(list_path) if list_path else None, folders).serve()


def _load_learned(path: Path, folders: Sequence[str]) -> str:
    """Loads what was learned of the script. Returns what that has changed of what forks depend on, or ""."""
    before = learned.state()
    learned.load(Learned.read(path, _VERSIONS), folders)
    after = learned.state()
    return next((f"change {what}" for what, value in before.items() if after[what] != value), "")


def _preload(folder: str = "", *modules: str) -> str | None:
    """Loads the job's own modules as its script would.

    Returns why the warm process cannot continue with them, or None.
    """
    sys.path.insert(0, folder)
    for module in modules:
        try:
            _load(module)
        except Exception as error:  # the script fails too, or does without the module
            print(f"preload: {module}: {type(error).__name__}: {error}", file=sys.stderr)
        if torch.cuda.is_initialized():
            return f"preload: {module} uses the GPU when it is imported, which no fork survives; take it out of preload"
    del sys.path[0]
    return None


def _load(name: str) -> None:
    """Imports a module, or a name in one: some packages load their parts only when a name is used."""
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        module, _, attribute = name.rpartition(".")
        if error.name != name or not module:
            raise
        getattr(importlib.import_module(module), attribute)


class _Warm:
    """Forks agents, forwards their reports and reaps their orphans, without threads."""

    def __init__(self, tasks: int, reports: int, list_path: Path | None = None, folders: Sequence[str] = ()) -> None:
        self._tasks, self._reports = tasks, reports
        self._list_path, self._folders = list_path, folders
        self._learner: int | None = None  # pid of the process that tries modules
        self._selector = selectors.DefaultSelector()
        self._agents: dict[int, _Lines] = {}
        self._woken, self._wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def serve(self) -> None:
        self._report({"event": "warm"})
        pending = b""
        signal.set_wakeup_fd(self._wakes)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # without a handler the signal would not wake select
        self._selector.register(self._woken, selectors.EVENT_READ, self._reap)
        self._selector.register(self._tasks, selectors.EVENT_READ, None)
        while True:
            for key, _ in self._selector.select():
                if self._selector.get_map().get(key.fd) is not key:
                    continue  # closed by an earlier one in this round
                if key.data is not None:
                    key.data()
                    continue
                chunk = os.read(self._tasks, 65536)
                if not chunk:
                    return
                *lines, pending = (pending + chunk).split(b"\n")
                for line in lines:
                    task = json.loads(line)
                    if "learn" in task:
                        self._learn(task)
                    else:
                        self._fork(task)

    def _learn(self, task: dict[str, Any]) -> None:
        """Has a fork try what a worker has loaded."""
        warm_pid = os.getpid()
        if self._list_path is None or self._learner is not None:
            return
        self._learner = os.fork()
        if self._learner == 0:
            code = 1
            try:
                die_with_parent(warm_pid)
                self._become_child()
                os.nice(19)
                code = _learn(task, self._list_path, self._folders)
            except Exception:  # nothing is learned; the job goes on
                traceback.print_exc()
            finally:
                os._exit(code)

    def _end_learning(self, code: int) -> None:
        """Loads what was found, so that the job's next attempt has it."""
        self._learner = None
        path = self._list_path
        if path is None:
            return
        if code not in (0, 1):
            return  # the attempt has ended, and this process with it
        known = Learned.read(path, _VERSIONS)
        if code == 0 and (changed := _load_learned(path, self._folders)):
            path.unlink(missing_ok=True)
            print(f"preload: the modules of {path} {changed}; they are not loaded again", file=sys.stderr)
        gc.freeze()
        self._report({"event": "learned", "modules": len(known.modules), "left_out": dict(known.left_out)})

    def _become_child(self) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        for fd in (self._tasks, self._reports, self._woken, self._wakes):
            os.close(fd)

    def _fork(self, task: dict[str, Any]) -> None:
        reads, writes = os.pipe()
        warm_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                self._become_child()
                os.close(reads)
                code = _run_agent(task, warm_pid, lambda report: _write_line(writes, report))
            finally:
                os._exit(code)
        os.close(writes)
        self._report({"event": "forked", "session": pid})  # the agent may be killed before it can report anything
        self._agents[pid] = lines = _Lines(reads, task["attempt"], self._report)
        self._selector.register(reads, selectors.EVENT_READ, lines.read)

    def _reap(self) -> None:
        """Reaps every ended child: agents and orphans, which may end long after their parents."""
        os.read(self._woken, 4096)
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._learner:
                    self._end_learning(os.waitstatus_to_exitcode(ended[1]))
                elif lines := self._agents.pop(ended[0], None):
                    self._end(lines, os.waitstatus_to_exitcode(ended[1]))

    def _end(self, lines: _Lines, code: int) -> None:
        lines.read()
        self._selector.unregister(lines.fd)
        os.close(lines.fd)
        if not lines.told_end:
            reason = f"the elastic agent of attempt {lines.attempt} ended with code {code}"
            self._report({"event": "ended", "attempt": lines.attempt, "ok": False, "failures": [], "reason": reason})

    def _report(self, report: dict[str, Any]) -> None:
        _write_line(self._reports, report)


class _Lines:
    """Forwards the whole lines of an agent. A killed agent may leave half a line."""

    def __init__(self, fd: int, attempt: int, report: Report) -> None:
        self.fd, self.attempt = fd, attempt
        self.told_end = False
        self._report = report
        self._pending = b""
        os.set_blocking(fd, False)

    def read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self.fd, 65536):
                *lines, self._pending = (self._pending + chunk).split(b"\n")
                for line in lines:
                    report = json.loads(line)
                    self.told_end |= report["event"] == "ended"
                    self._report(report | {"attempt": self.attempt})


def _learn(task: dict[str, Any], path: Path, folders: Sequence[str]) -> int:
    """Writes the list anew, if a worker has loaded something that is not in it. Returns 0 if so."""
    loaded = json.loads(Path(task["learn"]).read_bytes())
    names = learned.candidates(loaded, folders)
    found = learned.learn(names, folders, task["env"], Learned.read(path, _VERSIONS))
    if found is None:
        return 1
    try:
        found.write(path, _VERSIONS)
    except OSError as error:
        print(f"preload: {path}: {error.strerror}: what the script loads is not remembered", file=sys.stderr)
        return 1
    return 0


def _run_agent(task: dict[str, Any], warm_pid: int, report: Report) -> int:
    die_with_parent(warm_pid)
    os.setsid()
    # Torch elastic turns these signals into an exit that ends the workers; they are blocked, so they never arrive.
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
    os.environ.update(task["env"])
    _prepare_extensions(task["extensions"], report)
    agent = _Agent(task, report)
    reason = None
    try:
        if not agent.run().is_failed():
            return 0  # the end was reported
    except Exception as error:  # any error of torch's rendezvous; the supervisor decides what to do
        reason = f"torch elastic: {type(error).__name__}: {error}"
    report({"event": "ended", "ok": False, "failures": agent.failures, "reason": reason})
    return 0


def _prepare_extensions(own: str | None, report: Report) -> None:
    """Sees to the locks that killed workers have left in the directory of torch's extensions."""
    if own is not None:
        os.environ[extensions.VARIABLE] = own
        try:
            extensions.prepare(Path(own), extensions.build_of(torch.version))
        except (OSError, shutil.Error) as error:
            report({"event": "problem", "what": f"torch's extensions are built anew on this node: {error}"})
    elif given := os.environ.get(extensions.VARIABLE):
        for lock in extensions.locks(Path(given)):
            what = (
                f"{lock} is there: if no process builds this extension, a killed one has left it, and workers that use "
                f"the extension wait for it; remove it, or leave {extensions.VARIABLE} to Holdfast"
            )
            report({"event": "problem", "what": what})


class _Agent(LocalElasticAgent):
    """Torch elastic's agent for one attempt. A worker's exit code is its result."""

    def __init__(self, task: dict[str, Any], report: Report) -> None:
        self.failures: list[dict[str, Any]] = []
        self._task = task
        self._report = report
        self._pids: dict[int, int] = {}
        self._errors = _ErrorFiles(task)
        self._last_words = [LastWords() for _ in range(task["workers"])]
        spec = WorkerSpec(
            role="worker",
            local_world_size=task["workers"],
            entrypoint=run_script,
            args=(task, os.getpid(), self._last_words),
            rdzv_handler=JobRendezvous(task),
            max_restarts=0,
            monitor_interval=_MONITOR_INTERVAL_S,
            master_addr=task["master_addr"],
            master_port=task["master_port"],
        )
        super().__init__(spec, self._errors, start_method="fork", exit_barrier_timeout=_EXIT_BARRIER_S)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self._pids = super()._start_workers(worker_group)
        self._report({"event": "started", "pids": list(self._pids.values())})
        return self._pids

    def _exit_barrier(self) -> None:
        """Reports that this node's workers have exited with 0; then waits, because the first agent has the store of all
        nodes."""
        self._report({"event": "ended", "ok": True, "failures": [], "reason": None})
        super()._exit_barrier()

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        codes = {local_rank: _exit_code(pid) for local_rank, pid in self._pids.items()}
        failed = {local_rank: code for local_rank, code in codes.items() if code}
        if failed and None in codes.values() and self._is_stopping():
            return RunResult(state=WorkerState.HEALTHY)  # other workers may still be saving
        if failed:
            for pid in self._pids.values():  # at once; torch would send SIGTERM first and wait 30 s
                os.kill(pid, signal.SIGKILL)
            ranks = {worker.local_rank: worker.global_rank for worker in worker_group.workers}
            self.failures = [self._failure(ranks[local_rank], local_rank, code) for local_rank, code in failed.items()]
            return RunResult(state=WorkerState.FAILED)
        if all(code == 0 for code in codes.values()):
            ends = {worker.global_rank: None for worker in worker_group.workers}
            return RunResult(state=WorkerState.SUCCEEDED, return_values=ends)
        return RunResult(state=WorkerState.HEALTHY)

    def _is_stopping(self) -> bool:
        """Whether the workers exit by their own SIGTERM handlers. A SIGTERM for this process stays pending."""
        return not self._task["agreed_stop"] and signal.SIGTERM in signal.sigpending()

    def _failure(self, rank: int, local_rank: int, code: int) -> dict[str, Any]:
        error, trace, time_s = self._errors.read(local_rank)
        last_words = self._last_words[local_rank].read()
        if self._task["command"] and last_words is None:
            last_words = end_of(Path(self._task["log_dir"]) / f"rank-{rank}.log")
        lines = tail(Path(self._task["log_dir"]) / f"rank-{rank}.log")
        rule, action = last_met(self._task["log_rules"], lines) or (None, None)
        what = {"error": error, "traceback": trace, "last_words": last_words, "log": telling(lines, _MOST_LINES)}
        return {"rank": rank, "exit_code": code, "time": time_s, "rule": rule, "action": action} | what


class _ErrorFiles(LogsSpecs):
    """The files in which torch elastic's `record` writes the exception that ended a worker, beside the worker's log."""

    def __init__(self, task: dict[str, Any]) -> None:
        super().__init__()
        self._script = task["script"]
        self._dir = Path(task["log_dir"])
        self._paths: dict[int, Path] = {}

    @property
    def root_log_dir(self) -> str:
        return str(self._dir)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        self._paths = {local_rank: self._dir / f"rank-{env['RANK']}.error.json" for local_rank, env in envs.items()}
        for local_rank, path in self._paths.items():
            envs[local_rank]["TORCHELASTIC_ERROR_FILE"] = str(path)
        nowhere = dict.fromkeys(envs, "")  # run_script redirects both streams to one file
        return LogsDest(nowhere, nowhere, {}, {}, {local_rank: str(path) for local_rank, path in self._paths.items()})

    def read(self, local_rank: int) -> tuple[str | None, str | None, float]:
        """The cause of the worker's end: "Type: message", the script's traceback, and the time (s since the epoch)."""
        path = self._paths[local_rank]
        try:
            message = json.loads(path.read_text())["message"]
            trace = script_traceback(message["extraInfo"]["py_callstack"], self._script)
            return _shortened(message["message"]), _shortened(trace), path.stat().st_mtime
        except (OSError, ValueError, KeyError, TypeError):
            return None, None, time.time()


def _shortened(text: str) -> str:
    """A text without its middle, if it is long."""
    half = _MOST_CHARS // 2
    return text if len(text) <= _MOST_CHARS else f"{text[:half]}\n... {len(text) - 2 * half} more ...\n{text[-half:]}"


def _exit_code(pid: int) -> int | None:
    """A child's exit code (-N: signal N); None while it runs. The child is not reaped, because torch does that."""
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def _write_line(fd: int, report: dict[str, Any]) -> None:
    data = json.dumps(report).encode() + b"\n"
    while data:
        data = data[os.write(fd, data) :]


if __name__ == "__main__":
    main()
