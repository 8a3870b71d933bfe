"""A test cluster whose slurm.conf is another site's for a while."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slurm.testbed import TestCluster


@contextmanager
def site_conf(cluster: TestCluster, **parameters: str | None) -> Iterator[Path]:
    """Sets parameters of an idle cluster's slurm.conf, or leaves them out (None); puts them back, and the cluster too.

    Slurm's controller has the new file when it answers `reconfigure`; its slurmd read it at an unknown time later, so
    they are started anew.

    Returns:
        The directory that holds slurm.conf: the place for scripts.
    """
    conf = Path(cluster.env["SLURM_CONF"])
    before = conf.read_text()
    names = "|".join(parameters)
    kept = re.sub(rf"^({names})=.*\n", "", before, flags=re.MULTILINE)
    try:
        _take(cluster, conf, kept + "".join(f"{name}={value}\n" for name, value in parameters.items() if value))
        yield conf.parent
    finally:
        try:
            cluster.restore()  # a job that was about to leave would stay for minutes where its slurmd is killed
        finally:
            _take(cluster, conf, before)


def _take(cluster: TestCluster, conf: Path, text: str) -> None:
    conf.write_text(text)
    cluster.run_on_node(cluster.nodes[0], ["scontrol", "reconfigure"])
    for node in cluster.nodes:
        cluster.kill_daemon(node)
        cluster.start_daemon(node)
    cluster.restore()
