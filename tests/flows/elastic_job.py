"""An elastic job on a real Slurm: a base of two nodes that nobody preempts, and up to two boosters of one node each."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from main_job import Event
from slurm_kit import HOLDFAST
from supervised_job import SupervisedJob

from launcher.clusters.slurm.boosters import booster_name

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
    """A running job. Each node is its own.

    Args:
        cluster, folder: as of any job.
        nodes: of the base.
        slurm: further sbatch options of the base.
        args: of the script.
        tiers: more tiers of its checkpoint.
        elastic: keys of the section `elastic`.
    """

    def __init__(
        self,
        cluster: Any,
        folder: Path,
        *,
        nodes: int = 2,
        slurm: dict[str, Any] | None = None,
        args: tuple[str, ...] = (),
        tiers: dict[str, Any] | None = None,
        **elastic: Any,
    ) -> None:
        super().__init__(
            cluster,
            folder,
            nodes=nodes,
            spares=0,
            workers_per_node=1,
            tiers=tiers,
            args=list(args),
            restart={"hang_timeout_s": 20},
            elastic=ELASTIC | elastic,
            slurm={"partition": "base", "exclusive": True} | (slurm or {}),
        )

    def booster_name(self, number: str = "") -> str:
        """The name of the Slurm job of a booster; the beginning of all their names."""
        return booster_name(self.watch.job_dir.parent.parent.name, self.job_id, number)

    def boosters(self, *states: str) -> dict[str, str]:
        """Slurm's job number -> its nodes ("" while it waits), of its boosters in these states; in any but ended."""
        return {job: node for job, (node, _, _) in self.listed(*states).items()}

    def boosters_ever(self) -> dict[str, int]:
        """How many jobs Slurm has had of each booster, by its number. Slurm forgets ended ones after a while."""
        said = self.cluster.run_as_user(["squeue", "--noheader", "--states=all", "--format=%j"], timeout_s=20).stdout
        names = [name for name in said.split() if self._is_booster(name)]
        return dict(Counter(name.removeprefix(self.booster_name()) for name in names))

    def listed(self, *states: str) -> dict[str, tuple[str, str, str]]:
        """Slurm's job number -> nodes, priority and reason, of its boosters in these states; in any but ended."""
        asked = [f"--states={','.join(states)}"] if states else []
        said = self.cluster.run_as_user(
            ["squeue", "--noheader", "--format=%j|%i|%N|%Q|%r", *asked], timeout_s=20
        ).stdout
        rows = (line.split("|") for line in said.splitlines())
        return {job: (node, priority, why) for name, job, node, priority, why in rows if self._is_booster(name)}

    def is_preempted(self, booster: str) -> bool:
        """Whether Slurm has begun to end a booster for a more urgent job: its SIGTERM is under way."""
        argv = ["squeue", "--noheader", "--states=all", f"--jobs={booster}", "--Format=PreemptTime"]
        return self.cluster.run_as_user(argv, timeout_s=20).stdout.strip()[:1].isdecimal()

    def _is_booster(self, name: str) -> bool:
        return name.startswith(self.booster_name())

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

    def scale(self, nodes: int) -> None:
        """`holdfast scale JOB N` as its user."""
        self.cluster.run_as_user([*HOLDFAST, "scale", self.job_id, str(nodes)], timeout_s=60)

    def restores(self) -> list[tuple[int, str]]:
        """Step and tier of each restore."""
        return [(event["step"], event["tier"]) for event in self.watch.events("restore")]

    def left_nothing(self, *lost: str) -> None:
        """Waits until no booster is in the queue any more, and no memory on any node.

        Args:
            lost: nodes that do not run.
        """
        self.watch.until(lambda: None if self.boosters() else True, 60, "end of all boosters")
        for node in self.cluster.nodes:
            if node not in lost:
                gone = lambda node=node: None if self.memory_on(node) else True  # noqa: E731
                self.watch.until(gone, 60, f"end of the memory on {node}")

    @property
    def _ram_dir(self) -> str:
        """On a booster's node it bears the name of the booster's job."""
        return "/dev/shm/holdfast-*/slurm-*"

    def memory_on(self, node: str) -> str:
        """What a node's memory has of the job, of its boosters' too."""
        return str(
            self.cluster.run_on_node(node, ["sh", "-c", "ls -d /dev/shm/holdfast-*/slurm-* 2>/dev/null; true"]).stdout
        )


def urgent(cluster: Any, nodes: int, *options: str, partition: str = "urgent") -> str:
    """A job that outranks boosters, on so many nodes of its own; its number."""
    argv = ["sbatch", "--parsable", f"--partition={partition}", f"--nodes={nodes}", "--exclusive", *options]
    return str(cluster.run_as_user([*argv, "--output=/dev/null", "--wrap=sleep 1000"]).stdout.strip())
