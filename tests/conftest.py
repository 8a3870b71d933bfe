"""Fixtures that several folders of tests share."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from holdfast import __version__
from slurm.command import CommandError
from slurm.testbed import TestbedError, TestCluster
from slurm.testbed.plan import NoSuchCluster

NODES = 4
_TESTS = Path(__file__).parent
_STARTS = re.compile(r"\bsubprocess\b|multiprocessing|Popen|os\.fork\(|posix_spawn")
_PREFIX = "pytest-"
_NO_SLURM = "no real Slurm: "
_STARTS_ONE = "starts a process: run by `make test`"
_LONGEST_FAILURE = 4000  # characters
_a_test_runs = False

gc.disable()  # until all is imported and collected: a quarter of that time

# Where the suite runs in a shell's background Ctrl-C is ignored, and in all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A machine that is shared by several suites is slow at times: no failure for that.
# The same examples in every run, so that a run that fails fails again; `make fuzz` looks for new ones.
settings.register_profile("holdfast", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.register_profile("check", parent=settings.get_profile("holdfast"), max_examples=20)
settings.register_profile("fuzz", parent=settings.get_profile("holdfast"), derandomize=False, max_examples=1000)
settings.load_profile("holdfast")


def pytest_configure() -> None:
    """Processes that tests start elsewhere import this tree only as it is installed."""
    installed = {found.version for found in metadata.distributions(name="holdfast-hpc")}
    if installed != {__version__}:
        here = ", ".join(installed) or "nothing"
        pytest.exit(f"installed: {here}, expected holdfast-hpc {__version__}; run `pip install --no-deps -e .`", 2)


@pytest.fixture(autouse=True, scope="session")
def _no_waits_for_the_disk() -> Iterator[None]:
    """fsync protects from a loss of power, which no test brings about; a busy machine's disk takes 30 ms for one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)  # it refuses what is no open file, too
        yield


@pytest.fixture(autouse=True, scope="session")
def _log_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """No log files and nothing learned in the home of who runs the tests."""
    os.environ["HOLDFAST_LOG_DIR"] = str(tmp_path_factory.mktemp("log"))
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-processes", action="store_true", help="a test that is about to start a process is skipped")
    parser.addoption("--rerun-slurm", action="store_true", help="try a test marked slurm once more when it fails")


@cache  # a module has many tests
def _starts_processes(module: Any) -> bool:
    """Whether a module's text, or that of a kit it uses, has a word that starts processes."""
    return _has_word(module, set())


def _has_word(module: Any, seen: set[str]) -> bool:
    path = getattr(module, "__file__", None)
    if path is None or not Path(path).is_relative_to(_TESTS) or module.__name__ in seen:
        return False
    seen.add(module.__name__)
    if _STARTS.search(Path(path).read_text()):
        return True
    homes = {getattr(value, "__module__", None) or getattr(value, "__name__", "") for value in vars(module).values()}
    return any(_has_word(sys.modules[home], seen) for home in homes if home in sys.modules)


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_itemcollected(item: pytest.Item) -> None:
    module = getattr(item, "module", None)
    if _starts_processes(module):
        item.add_marker(pytest.mark.processes)


def pytest_sessionstart(session: pytest.Session) -> None:
    if session.config.getoption("--no-processes"):
        sys.addaudithook(_refuse_processes)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Iterator[None]:
    """Imports may start what they like (a CUDA build of torch looks for libraries), and so may pytest-xdist."""
    global _a_test_runs
    _a_test_runs = True
    try:
        return (yield)
    finally:
        _a_test_runs = False


def _refuse_processes(event: str, args: tuple[object, ...]) -> None:
    if _a_test_runs and event in ("os.fork", "os.posix_spawn", "os.system", "subprocess.Popen"):
        raise pytest.skip.Exception(_STARTS_ONE)  # not an Exception: no code under test takes it for a failure


@pytest.hookimpl(trylast=True)  # after -m has chosen: what is counted as skipped was asked for
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the files that need a real Slurm, and of the others with the longest: none of these comes last.

    Where there can be no real Slurm, what needs it is skipped.
    """
    needing = [item for item in items if item.get_closest_marker("slurm")]
    files = {item.path for item in needing}
    long_s = {item.path: marker.kwargs["seconds"] for item in items if (marker := item.get_closest_marker("long"))}
    items.sort(key=lambda item: (item.path not in files, -long_s.get(item.path, 0)))
    if not needing:
        return
    if not any(Path("/usr/lib").glob("*/slurm-wlm/mpi_pmix*.so")):
        for item in needing:
            if item.get_closest_marker("pmix"):
                item.add_marker(pytest.mark.skip(reason="this Slurm has no PMIx, as Debian's 26.05"))
    if config.getoption("--rerun-slurm"):
        for item in needing:
            item.add_marker(pytest.mark.flaky(reruns=1))
    try:
        TestCluster.check()
    except TestbedError as error:
        for item in needing:
            item.add_marker(pytest.mark.skip(reason=f"{_NO_SLURM}{error}"))


def pytest_collection_finish() -> None:
    gc.enable()
    gc.freeze()  # no collection in a test looks at torch's modules again


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say loudly what was not tested, counted from the reports: those of all pytest-xdist workers meet here."""
    reasons = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", [])]
    if starting := sum(_STARTS_ONE in reason for reason in reasons):
        terminalreporter.write_line(f"{starting} tests skipped, as each {_STARTS_ONE}")
    without = [reason for reason in reasons if _NO_SLURM in reason]
    if without:
        why = without[0].partition(_NO_SLURM)[2].rstrip("')")
        terminalreporter.write_line(f"{len(without)} TESTS ON A REAL SLURM SKIPPED: {why}", red=True, bold=True)
    for report in terminalreporter.stats.get("rerun", []):  # pytest shows the failures of the last try only
        terminalreporter.section(f"tried again: {report.nodeid}")
        terminalreporter.write_line(report.longreprtext[-_LONGEST_FAILURE:])


@pytest.fixture(scope="session", autouse=True)
def _own_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Jobs of tests do not show among the user's own in `holdfast status`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True)
def _own_signal_handlers() -> Iterator[None]:
    """What a test sets for a signal, programs run in its process included, is not the next test's.

    A test that is skipped where it is about to fork may have blocked signals for that.
    """
    numbers = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
    before = [signal.getsignal(number) for number in numbers]
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    for number, handler in zip(numbers, before, strict=True):
        if handler is not None:
            signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _same_priority() -> Iterator[None]:
    """A test that lowers this process's priority slows all that follow, and the processes that they start."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    yield
    assert os.getpriority(os.PRIO_PROCESS, 0) == before, "the test has changed the priority of the tests' process"


@pytest.fixture(scope="session")
def _idle_cluster() -> Iterator[Callable[[], TestCluster]]:
    _remove_clusters_of_dead_sessions()
    name = f"{_PREFIX}{os.getpid()}"
    cluster = TestCluster.up(name, nodes=NODES)

    def idle() -> TestCluster:
        """The cluster as it was made; a new one if that fails: else all later tests would."""
        nonlocal cluster
        try:
            cluster.restore()
        except (TestbedError, CommandError) as error:
            warnings.warn(f"cluster {name} is made anew: {error}", stacklevel=2)
            cluster.down()
            cluster = TestCluster.up(name, nodes=NODES)
        return cluster

    yield idle
    cluster.down()


@pytest.fixture
def slurm_cluster(_idle_cluster: Callable[[], TestCluster]) -> Iterator[TestCluster]:
    """A real Slurm with four idle nodes, n1 to n4; mark the test `slurm`. It may lose nodes: they are brought back."""
    yield _idle_cluster()
    _idle_cluster()


def _remove_clusters_of_dead_sessions() -> None:
    for name in TestCluster.list():
        if name.startswith(_PREFIX) and not os.path.exists(f"/proc/{name.split('-')[1]}"):
            with contextlib.suppress(NoSuchCluster):  # the other pytest-xdist workers remove them too
                TestCluster.load(name).down()
