"""Our prolog and epilog beside a site's own in one slurm.conf, of which any may fail."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hooks_kit import state
from site_conf import site_conf
from waiting import until

from slurm.conf import lint
from slurm.testbed import TestCluster

pytestmark = pytest.mark.slurm

# What a script of the site's sees of ours: the file for the job's tasks is there from our prolog to our epilog.
SEEN = """#!/bin/sh
[ -e {ours}/tasks/$SLURM_JOB_ID ] && ours=there || ours=none
echo "$SLURMD_NODENAME ${{0##*/}} $SLURM_SCRIPT_CONTEXT $ours" >> {seen}
[ "$SLURMD_NODENAME ${{0##*/}} $SLURM_SCRIPT_CONTEXT" != "$(cat {failing})" ]
"""


class Site:
    """A cluster that calls our hooks between two scripts of its own.

    Attributes:
        cluster: the cluster.
        conf: its slurm.conf.
    """

    def __init__(self, cluster: TestCluster, directory: Path) -> None:
        self.cluster = cluster
        self.conf = Path(cluster.env["SLURM_CONF"])
        self._seen, self._failing = directory / "seen", directory / "failing"
        self._ours = {node: cluster.set_hooks(node) / "run/holdfast" for node in cluster.nodes}
        ours = str(self._ours["n1"]).replace("/n1/", "/$SLURMD_NODENAME/")
        text = SEEN.format(ours=ours, seen=self._seen, failing=self._failing)
        for hook in ("prolog", "epilog"):
            scripts = directory / f"{hook}.d"
            scripts.mkdir(exist_ok=True)
            for name in ("a-site", "z-site"):
                (scripts / name).write_text(text)
                (scripts / name).chmod(0o755)
            (scripts / "holdfast").symlink_to(self.conf.parent / "hooks" / f"{hook}.sh")

    def forget(self) -> None:
        """Nothing was seen, and nothing fails."""
        self._seen.write_text("")
        self._failing.write_text("")

    def fail(self, node: str, script: str, hook: str) -> None:
        self._failing.write_text(f"{node} {script} {hook}_slurmd")

    def seen(self, node: str) -> list[str]:
        """script, hook, whether ours had been there: in the order in which Slurm called them on a node."""
        lines = [line.split() for line in self._seen.read_text().splitlines()]
        return [f"{script} {hook.removesuffix('_slurmd')} {ours}" for name, script, hook, ours in lines if name == node]

    def left_of_jobs(self, node: str) -> str:
        """What our hooks and jobs have left on a node, and processes of the jobs' user."""
        look = f"ls -d {self._ours[node]}/*/* /dev/shm/holdfast-*/* 2>/dev/null; pgrep -a -u {self.cluster.user}; true"
        return self.cluster.run_on_node(node, ["sh", "-c", look]).stdout


@pytest.fixture(scope="module")
def _site() -> Iterator[Site]:
    cluster = TestCluster.up(f"pytest-{os.getpid()}-beside", nodes=2, hooks=True)
    try:
        directory = Path(cluster.env["SLURM_CONF"]).parent
        site = Site(cluster, directory)
        site.forget()
        with site_conf(cluster, Prolog=f"{directory}/prolog.d/*", Epilog=f"{directory}/epilog.d/*"):
            yield site
    finally:
        cluster.down()


@pytest.fixture
def site(_site: Site) -> Site:
    _site.cluster.restore()
    _site.forget()
    for node in _site.cluster.nodes:
        _site.cluster.set_hooks(node)
    return _site


LEAVE = """
touch $HOLDFAST_MEMORY_DIR/state
setsid sleep 600 </dev/null >/dev/null 2>&1 &
until pgrep -x sleep; do :; done
"""


def test_slurm_calls_them_in_reverse_alphabetical_order(site: Site) -> None:
    """Prologs and epilogs alike; so a name that comes last has ours called first, before one that may fail."""
    assert site.cluster.run_as_user(["srun", "-w", "n1", "sh", "-c", "echo $HOLDFAST_MEMORY_DIR"]).stdout.strip()
    until(lambda: len(site.seen("n1")) == 4, "two prologs and two epilogs")
    assert site.seen("n1") == ["z-site prolog none", "a-site prolog there", "z-site epilog there", "a-site epilog none"]
    directory = site.conf.parent / "hooks"
    assert not {remark.parameter for remark in lint(site.conf.read_text(), directory)} & {"Prolog", "Epilog"}


def test_what_a_job_left_goes_although_an_epilog_before_ours_has_failed(site: Site) -> None:
    """Slurm drains the node and calls no further epilog: the next health check does what ours would have done."""
    site.fail("n1", "z-site", "epilog")
    site.cluster.set_hooks("n1", keep_memory_s=0)
    site.cluster.run_as_user(["srun", "-w", "n1", "bash", "-c", LEAVE])
    until(lambda: state(site.cluster, "n1").reason.startswith("Epilog error"), "the drain")
    assert site.seen("n1")[-1] == "z-site epilog there"

    until(lambda: not site.left_of_jobs("n1"), "the health check")
    assert "DRAIN" in state(site.cluster, "n1").flags  # that is the admin's to end


@pytest.mark.parametrize("script", ["z-site", "a-site"], ids=["before ours", "after ours"])
def test_a_job_that_meets_a_failing_prolog_leaves_nothing_and_starts_elsewhere(site: Site, script: str) -> None:
    site.fail("n1", script, "prolog")
    output = site.cluster.home / script
    said = ["sbatch", "-N1", "-o", str(output), "--wrap", "echo $SLURMD_NODENAME"]
    site.cluster.run_as_user(said)
    until(lambda: output.exists() and output.read_text().strip(), "the job's output")
    assert output.read_text().strip() == "n2"
    assert state(site.cluster, "n1").reason.startswith("Prolog error")
    assert not site.left_of_jobs("n1")
