"""Fixtures that several folders of tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from slurm.testbed import TestbedError, TestCluster

NODES = 4
_PREFIX = "pytest-"
_skipped = pytest.StashKey[str]()


@pytest.fixture(autouse=True, scope="session")
def _log_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """No log files in the home of who runs the tests."""
    os.environ["HOLDFAST_LOG_DIR"] = str(tmp_path_factory.mktemp("log"))


@pytest.hookimpl(trylast=True)  # after -m has chosen: what is counted as skipped was asked for
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what needs a real Slurm where there can be none."""
    needing = [item for item in items if item.get_closest_marker("slurm")]
    if not needing:
        return
    try:
        TestCluster.check()
    except TestbedError as error:
        config.stash[_skipped] = f"{len(needing)} TESTS ON A REAL SLURM SKIPPED: {error}"
        for item in needing:
            item.add_marker(pytest.mark.skip(reason="no real Slurm here, see the end of the summary"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say loudly what was not tested."""
    if _skipped in config.stash:
        terminalreporter.write_line(config.stash[_skipped], red=True, bold=True)


@pytest.fixture(scope="session", autouse=True)
def _own_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Jobs of tests do not show among the user's own in `holdfast status`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def _session_cluster() -> Iterator[TestCluster]:
    _remove_clusters_of_dead_sessions()
    cluster = TestCluster.up(f"{_PREFIX}{os.getpid()}", nodes=NODES)
    yield cluster
    cluster.down()


@pytest.fixture
def slurm_cluster(_session_cluster: TestCluster) -> Iterator[TestCluster]:
    """A real Slurm with four idle nodes, n1 to n4; mark the test `slurm`. It may lose nodes: they are brought back."""
    _session_cluster.restore()
    yield _session_cluster
    _session_cluster.restore()


def _remove_clusters_of_dead_sessions() -> None:
    for name in TestCluster.list():
        if name.startswith(_PREFIX) and not os.path.exists(f"/proc/{name.split('-')[1]}"):
            TestCluster.load(name).down()
