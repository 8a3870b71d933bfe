"""A job that waits for a limit of its QOS, with slurmdbd."""

from __future__ import annotations

import os

import pytest
from accounts import missing
from test_elastic_accounts_on_slurm import four_nodes
from waiting import until

from launcher.clusters.slurm.queue import never_starts, why_it_waits
from slurm import Slurm

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.faults,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(missing()), reason=f"not installed: {', '.join(missing())}"),
]

LINES = (
    "add account all set GrpTRES=node=3",
    "add qos small set MaxTRESPerUser=node=2 MaxWall=01:00:00",
    "add user {user} account=all",
    "modify user {user} set qos+=small",
)
LIMITS = {"AccountingStorageEnforce": "associations,limits,qos"}


def test_it_is_told_whether_it_waits_for_ever_or_for_others() -> None:
    with four_nodes("limits", LINES, LIMITS) as cluster:
        slurm = Slurm(env=os.environ | cluster.env)

        def submit(nodes: int) -> int:
            argv = [
                "sbatch",
                "--parsable",
                "--qos=small",
                "--exclusive",
                f"--nodes={nodes}",
                "--output=/dev/null",
                "--wrap=sleep 300",
            ]
            return int(cluster.run_as_user(argv).stdout.split(";")[0])

        def told(job_id: int) -> str:
            job = slurm.job(job_id)
            assert job is not None and job.state == "PENDING"
            text = why_it_waits(job, slurm.nodes, slurm.config, slurm.limits_of)
            return text if "QOS" in text else ""

        def warned(*options: str) -> list[str]:
            held = cluster.run_as_user(
                ["sbatch", "--parsable", "--hold", "--output=/dev/null", *options, "--wrap=true"]
            )
            return never_starts(slurm, held.stdout.strip().split(";")[0])

        assert warned("--nodes=4") == ["account all has GrpTRES node=3, the job asks for node=4"]
        assert warned("--nodes=3", "--time=90") == []
        assert warned("--nodes=3", "--qos=small", "--time=90") == [
            "QOS small has MaxTRESPU node=2, the job asks for node=3",
            "QOS small has MaxWall 01:00:00, the job asks for 90 minutes",
        ]
        limit = "waits in the queue: QOSMaxNodePerUserLimit; QOS small has MaxTRESPU node=2"
        too_large = submit(3)
        found = until(lambda: told(too_large), "its reason")
        assert found == f"{limit}, the job asks for node=3, so it waits for ever: ask for less, or for another QOS"
        running = submit(2)
        until(lambda: slurm.states([str(running)])[str(running)][0] == "RUNNING", "the start of one that fits")
        waiting = submit(1)
        found = until(lambda: told(waiting), "its reason")
        assert found == f"{limit}, for several jobs together: it starts when others have ended"
