"""Fixtures of the flow tests: the digests that every run, failures or not, has to end with; a cluster to break."""

from __future__ import annotations

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
_SHARE_BYTES = 32 << 20


class Reference(dict[int, str]):
    """Step -> digest, as far as somebody has asked."""

    def __init__(self, run: subprocess.Popen[str]) -> None:
        super().__init__()
        self._run = run

    def __missing__(self, step: int) -> str:
        assert self._run.stdin is not None and self._run.stdout is not None
        print(step, file=self._run.stdin, flush=True)
        self[step] = self._run.stdout.readline().strip()
        return self[step]


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
def steady_digests() -> Iterator[dict[int, str]]:
    """Step -> digest of the weights of `steady.py` in a run that nothing interrupts."""
    argv = [sys.executable, str(STEADY), "--reference"]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}) as run:
        yield Reference(run)


@pytest.fixture(scope="session")
def small_share() -> Iterator[Path]:
    """A small file system that the nodes to break share; tests may fill it, and have to clear it again."""
    path = Path(tempfile.mkdtemp(prefix="holdfast-share-", dir="/var/tmp"))
    image = path.with_suffix(".img")  # not tmpfs: jobs with a folder in a host's memory are refused
    with image.open("wb") as file:
        file.truncate(_SHARE_BYTES)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, path], check=True)
    path.chmod(0o1777)
    yield path
    subprocess.run(["umount", "--lazy", path], check=True)
    image.unlink()
    path.rmdir()


@pytest.fixture(scope="session")
def _fault_cluster(small_share: Path) -> Iterator[TestCluster]:
    cluster = TestCluster.up(f"pytest-{os.getpid()}-faults", nodes=5)  # each node sees what is mounted here by now
    yield cluster
    cluster.down()


@pytest.fixture(scope="module")
def shared_fault_cluster(_fault_cluster: TestCluster) -> TestCluster:
    """A real Slurm with five idle nodes for the tests of one module, which share a job on it."""
    _fault_cluster.restore()
    return _fault_cluster


@pytest.fixture
def fault_cluster(_fault_cluster: TestCluster) -> TestCluster:
    """A real Slurm with five idle nodes for one test, whatever the test before it has left."""
    _fault_cluster.restore()
    return _fault_cluster
