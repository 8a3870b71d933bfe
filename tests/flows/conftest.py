"""Fixtures of the flow tests: the digests that every run, failures or not, has to end with; a cluster to break."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from main_job import Watch, main_job

from launcher import Executor
from slurm.testbed import TestCluster

STEADY = Path(__file__).with_name("steady.py")
_REFERENCE_STEPS = 6000
_SHARE_BYTES = 32 << 20


@pytest.fixture(scope="session")
def reference_sha256(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the final state of a run without any failure."""
    executor = Executor(folder=tmp_path_factory.mktemp("reference") / "%j", cluster="local")
    job = executor.submit(main_job(spares=0))
    outcome = job.result()
    watch = Watch(job.paths.folder)
    assert outcome["name"] == "done" and not watch.events("fault"), watch.story()
    return watch.sha256


@pytest.fixture(scope="session")
def steady_digests(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """Step -> digest of the weights of `steady.py` in a run that nothing interrupts."""
    path = tmp_path_factory.mktemp("reference") / "digests.json"
    argv = [sys.executable, str(STEADY), "--reference", str(path), "--steps", str(_REFERENCE_STEPS)]
    subprocess.run(argv, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=120)
    return {int(step): digest for step, digest in json.loads(path.read_text()).items()}


@pytest.fixture(scope="session")
def small_share() -> Iterator[Path]:
    """A small file system that the nodes of `fault_cluster` share; tests may fill it, and have to clear it again."""
    path = Path(tempfile.mkdtemp(prefix="holdfast-share-", dir="/var/tmp"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_SHARE_BYTES},mode=1777", "tmpfs", path], check=True)
    yield path
    subprocess.run(["umount", "--lazy", path], check=True)
    path.rmdir()


@pytest.fixture(scope="session")
def _fault_cluster(small_share: Path) -> Iterator[TestCluster]:
    cluster = TestCluster.up(f"pytest-{os.getpid()}-faults", nodes=5)  # each node sees what is mounted here by now
    yield cluster
    cluster.down()


@pytest.fixture(scope="module")
def fault_cluster(_fault_cluster: TestCluster) -> Iterator[TestCluster]:
    """A real Slurm with five idle nodes for the tests of one module, which may share a job on it."""
    _fault_cluster.restore()
    yield _fault_cluster
    _fault_cluster.restore()
