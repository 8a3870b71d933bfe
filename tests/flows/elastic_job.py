"""An elastic job on a real Slurm: a base of two nodes that nobody preempts, and up to two boosters of one node each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from main_job import Event
from supervised_job import SupervisedJob

SIZE_S = 120.0  # longer than any change of size takes on a machine that does much else
GRACE_S = 20  # the testbed's, of its partition for boosters
ELASTIC = {
    "min_nodes": 2,
    "max_nodes": 4,
    "scaling_timeout_s": 1,
    "scale_up_snooze_s": 2,
    "faulty_scale_down_timeout_s": 2,
    "booster": {"partition": "boost"},
}


class ElasticJob(SupervisedJob):
    """A running job. Each node is its own."""

    def __init__(self, cluster: Any, folder: Path, **elastic: Any) -> None:
        super().__init__(
            cluster,
            folder,
            nodes=2,
            spares=0,
            workers_per_node=1,
            restart={"hang_timeout_s": 20},
            elastic=ELASTIC | elastic,
            slurm={"partition": "base", "exclusive": True},
        )

    @property
    def booster_name(self) -> str:
        """The name of the Slurm jobs of its boosters."""
        return f"{self.watch.job_dir.parent.parent.name}-booster-of-{self.job_id}"

    def boosters(self, *states: str) -> dict[str, str]:
        """Slurm's job number -> its nodes ("" while it waits), of its boosters in these states; in any but ended."""
        asked = [f"--states={','.join(states)}"] if states else []
        argv = ["squeue", "--noheader", "--format=%i|%N", f"--name={self.booster_name}", *asked]
        said = self.cluster.run_as_user(argv, timeout_s=20).stdout
        rows = (line.split("|") for line in said.split())
        return {number: node for number, node in rows}

    def until_size(self, nodes: int, after: int = -1) -> Event:
        """Waits until an attempt of that size trains and has committed a step of its own.

        Args:
            nodes: the size.
            after: the number of an earlier attempt.
        """

        def found() -> Event | None:
            starts = [event for event in self.watch.events("attempt_start") if event["attempt"] > after]
            start = next((event for event in starts if len(event["nodes"]) == nodes), None)
            is_over = start is not None and start["attempt"] != self.attempt["attempt"]
            return start if start is not None and (is_over or self._committed() is not None) else None

        return self.watch.until(found, SIZE_S, f"attempt on {nodes} nodes")

    @property
    def _ram_dir(self) -> str:
        """On a booster's node it bears the name of the booster's job."""
        return "/dev/shm/holdfast-*/slurm-*"

    def memory_on(self, node: str) -> str:
        """What a node's memory has of the job, of its boosters' too."""
        return str(
            self.cluster.run_on_node(node, ["sh", "-c", "ls -d /dev/shm/holdfast-*/slurm-* 2>/dev/null; true"]).stdout
        )
