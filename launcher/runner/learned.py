"""Modules that a script loads by itself, learned in one run and loaded in advance in the next ones.

A worker lists the modules that it has loaded by its second step boundary. A fork of the warm process then imports those
that it lacks, one after the other, and watches. A module is left out if its import starts a thread, opens a GPU, sets a
variable of the environment, a signal handler or the working directory, or reads a variable whose value only a worker
has; and so is every module that imports such a one. The rest is written into the user's cache.

Only modules of the interpreter's own directories are learned. Those beside the script may change between two attempts.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import site
import stat
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.machinery import ExtensionFileLoader, PathFinder, SourceFileLoader, SourcelessFileLoader
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from holdfast.base.files import durable_write
from holdfast.base.plain_file import read_json

_ROUNDS = 12  # imports of the whole list, each without what the earlier ones have found
_ROUND_S = 300.0
_WORTH = 20  # fewer modules are imported in no time
_OURS = ("ckpt", "holdfast", "launcher", "lifecycle", "slurm")
_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD)
# Those that torch elastic gives each worker, in addition to the attempt's own.
_OF_A_WORKER = frozenset((
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE",
    "GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID",
))  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Learned:
    """What is known of a script's modules.

    Attributes:
        tried: all that were tried.
        modules: those that can be loaded in advance, in this order.
        left_out: those that cannot, and why. They are not loaded by others of the list either.
    """

    tried: frozenset[str] = frozenset()
    modules: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, versions: Sequence[str]) -> Learned:
        """What an earlier run has written; nothing if that was another version of Python or torch, or another user."""
        try:
            facts = path.lstat()
            if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o022:
                return cls()
            data = read_json(path)
            if data["versions"] != list(versions):
                return cls()
            left_out = {str(name): str(why) for name, why in data["left_out"].items()}
            return cls(tried=frozenset(data["tried"]), modules=tuple(map(str, data["modules"])), left_out=left_out)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return cls()

    def write(self, path: Path, versions: Sequence[str]) -> None:
        """Raises OSError if it cannot be written."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        data = {
            "versions": list(versions),
            "tried": sorted(self.tried),
            "modules": self.modules,
            "left_out": dict(self.left_out),
        }
        durable_write(path, json.dumps(data).encode())


def path_of(program: str, environment: Mapping[str, str]) -> Path:
    """The file for a script or a module, and this interpreter, in the user's cache."""
    cache = Path(environment.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    key = sha256(f"{sys.executable}\0{program}".encode()).hexdigest()[:24]
    return cache / "holdfast" / "preload" / f"{key}.json"


def candidates(loaded: Mapping[str, str], folders: Iterable[str]) -> list[str]:
    """The names of a worker's modules that can be tried here.

    Args:
        loaded: names and files, as `ckpt.worker.loaded` writes them.
        folders: where the script's own modules are. A name that is found there is the script's.
    """
    places = [str(Path(place).resolve()) + os.sep for place in _interpreters_directories()]
    own = _own_names({name.partition(".")[0] for name in loaded}, folders)
    return [
        name
        for name, file in loaded.items()
        if name.partition(".")[0] not in own
        and all(part.isidentifier() for part in name.split("."))
        and not name.startswith("__")
        and (file in ("built-in", "frozen") or str(Path(file).resolve()).startswith(tuple(places)))
    ]


def load(learned: Learned, folders: Iterable[str]) -> None:
    """Imports the modules in this process. One that cannot be imported any more is left to the script."""
    barred = {*learned.left_out, *_own_names({name.partition(".")[0] for name in learned.modules}, folders)}
    with _bar(barred):
        for name in learned.modules:
            _import(name)


def learn(
    names: Sequence[str], folders: Iterable[str], environment: Mapping[str, str], known: Learned
) -> Learned | None:
    """Tries the modules that this process has not loaded, in forks of it.

    Args:
        names: in the order in which the script has begun to import them.
        folders: where the script's own modules are.
        environment: the variables that a worker has in addition.
        known: what earlier runs have learned, and this process has loaded.

    Returns:
        The new list. None if there is nothing new, or too little to be worth it.
    """
    names = [name for name in names if name not in sys.modules]
    if len(names) < _WORTH or known.tried.issuperset(names):
        return None
    new = _sift(names, folders, environment, dict(known.left_out))
    modules = tuple(dict.fromkeys((*known.modules, *new.modules)))
    return Learned(tried=known.tried | new.tried, modules=modules, left_out=new.left_out)


def _sift(
    names: Sequence[str], folders: Iterable[str], environment: Mapping[str, str], left_out: dict[str, str]
) -> Learned:
    own = _own_names({name.partition(".")[0] for name in names}, folders)
    watched = _OF_A_WORKER | {name for name, value in environment.items() if os.environ.get(name) != value}
    good: list[str] = []
    for _ in range(_ROUNDS):
        found = _in_a_fork(lambda: _round(names, {*left_out, *own}, watched))
        if found is None:  # it ended the process, or does not end
            return Learned(tried=frozenset(names), left_out=left_out)
        good = found["good"]
        if found["culprit"] is None:
            break
        left_out[found["culprit"]] = found["why"]
    return Learned(tried=frozenset(names), modules=tuple(good), left_out=left_out)


def _interpreters_directories() -> set[str]:
    paths = sysconfig.get_paths()
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return {*(paths[name] for name in names), *site.getsitepackages(), site.getusersitepackages()}


def _own_names(names: Iterable[str], folders: Iterable[str]) -> set[str]:
    """Those of these top-level names that are modules of the script, or Holdfast's."""
    folders = list(folders)
    return {name for name in names if name in _OURS or PathFinder.find_spec(name, folders) is not None}


def _round(names: Sequence[str], barred: set[str], watched: frozenset[str]) -> dict[str, Any]:
    """Imports in this process until an import does what it must not. This process is of no further use."""
    watch = _Watch(watched)
    good: list[str] = []
    with _bar(barred):
        for name in names:
            is_loaded = name in sys.modules or _import(name)
            watch.look(name)
            if watch.why:
                return {"good": good, "culprit": watch.culprit or name, "why": watch.why}
            if is_loaded:
                good.append(name)
    return {"good": good, "culprit": None}


def _import(name: str) -> bool:
    """Whether a module can be imported. What it raises, other than a request to stop, is the script's to see."""
    try:
        importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException:  # a barred module is one; a module may also call sys.exit
        return False
    return True


class _Barred(BaseException):
    """A module that is left out. No `except ImportError` of a module that does without it may catch this."""


@contextlib.contextmanager
def _bar(names: set[str]) -> Iterator[None]:
    """Makes the import of these modules, and of all below them, fail."""

    class _Refusal:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> None:
            parts = name.split(".")
            if any(".".join(parts[: count + 1]) in names for count in range(len(parts))):
                raise _Barred(name)

    sys.meta_path.insert(0, _Refusal)
    try:
        yield
    finally:
        sys.meta_path.remove(_Refusal)


class _Watch:
    """Watches what imports do to this process, for the rest of its life.

    Attributes:
        why: the first thing that an import has done and must not; "" for none.
        culprit: the module that was being imported then, the innermost if there are several.
    """

    def __init__(self, watched: frozenset[str]) -> None:
        self.why = self.culprit = ""
        encode = os.environ.encodekey  # every use of a variable goes through it

        def use(name: Any) -> Any:
            if name in watched:
                self._see(f"reads {name}")
            return encode(name)

        os.environ.encodekey = use
        sys.addaudithook(self._audit)
        self._look_at_threads()
        for loader in (SourceFileLoader, SourcelessFileLoader, ExtensionFileLoader):
            self._look_after(loader)
        self._before = state()

    def look(self, name: str) -> None:
        """Compares, after a module was imported."""
        if not self.why:
            after = state()
            changed = [what for what, value in self._before.items() if after[what] != value]
            if changed:
                self.why, self.culprit = f"changes {changed[0]}", name

    def _look_after(self, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(this: Any, module: ModuleType) -> None:
            execute(this, module)
            self.look(module.__name__)

        loader.exec_module = exec_module

    def _look_at_threads(self) -> None:
        """Sees those too that have ended when it is looked for changes."""
        start = threading.Thread.start

        def see_start(this: threading.Thread) -> None:
            self._see("starts a thread")
            start(this)

        threading.Thread.start = see_start  # type: ignore[assignment, method-assign]

    def _audit(self, event: str, arguments: tuple[object, ...]) -> None:
        if event in ("os.putenv", "os.unsetenv"):
            self._see("sets a variable of the environment")

    def _see(self, what: str) -> None:
        if self.why:
            return
        self.why = what
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and frame.f_code.co_name != "<module>":
            frame = frame.f_back
        name = "" if frame is None else frame.f_globals.get("__name__")
        self.culprit = name if isinstance(name, str) and name != "__main__" else ""


def state() -> dict[str, Any]:
    """What no import may change in the warm process, by the words for it."""
    descriptors = []
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            descriptors.append(os.readlink(f"/proc/self/fd/{entry}"))
    torch = sys.modules["torch"]
    return {
        "the number of threads": len(os.listdir("/proc/self/task")),
        "a GPU": ([name for name in descriptors if name.startswith("/dev/nvidia")], torch.cuda.is_initialized()),
        "the environment": dict(os.environ._data),  # type: ignore[attr-defined]  # no use of a variable
        "the working directory": os.getcwd(),
        "a signal's handler": [signal.getsignal(number) for number in _HANDLED],
    }


def _in_a_fork(work: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
    """The result of `work` in a forked process; None if that ends without one, or does not end."""
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reads)
            data = json.dumps(work()).encode()
            with os.fdopen(writes, "wb") as pipe:
                pipe.write(data)
        finally:
            os._exit(0)
    os.close(writes)
    data = b""
    try:
        while select.select([reads], [], [], _ROUND_S)[0] and (chunk := os.read(reads, 1 << 16)):
            data += chunk
    finally:
        os.close(reads)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    try:
        return dict(json.loads(data))
    except ValueError:
        return None
