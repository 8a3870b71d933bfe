"""Fixtures of the flow tests: the digest that every run, failures or not, has to end with."""

from __future__ import annotations

import pytest
from main_job import Watch, main_job

from launcher import Executor


@pytest.fixture(scope="session")
def reference_sha256(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the final state of a run without any failure."""
    executor = Executor(folder=tmp_path_factory.mktemp("reference") / "%j", cluster="local")
    job = executor.submit(main_job(spares=0))
    outcome = job.result()
    watch = Watch(job.paths.folder)
    assert outcome["name"] == "done" and not watch.events("fault"), watch.story()
    return watch.sha256
