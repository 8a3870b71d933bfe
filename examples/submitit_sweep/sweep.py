"""A sweep through submitit's own executor, the way hydra's submitit launcher does it.

    python sweep.py --partition train --nodes 2 --learning-rates 0.1 0.01

Hydra's launcher hands one callable to `AutoExecutor.map_array`, once per configuration; its `checkpoint` method makes
submitit run it again after a preemption. Inside it, `Torchrun(...)()` trains on the nodes of the job that it is in.
Nothing but these two methods is needed in a hydra application either: call Torchrun in the function that hydra runs.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import submitit

from holdfast import Torchrun

SCRIPT = Path(__file__).with_name("train.py")


class Sweep:
    """One callable for all configurations."""

    def __call__(self, learning_rate: float, number: int) -> dict[str, Any]:
        namespace = f"sweep-{number}"
        run = Torchrun(
            SCRIPT, "--learning-rate", str(learning_rate), name=namespace, checkpoint={"namespace": namespace}
        )
        return run()

    def checkpoint(self, learning_rate: float, number: int) -> submitit.helpers.DelayedSubmission:
        """After a preemption the same configuration runs again: it goes on from its checkpoints."""
        return submitit.helpers.DelayedSubmission(self, learning_rate, number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", choices=["slurm", "local", "debug"], help="slurm where there is one")
    parser.add_argument("--partition")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--folder", default="sweep", help="on a file system that all nodes see")
    parser.add_argument("--learning-rates", type=float, nargs="+", default=[0.1, 0.01])
    options = parser.parse_args()
    executor = submitit.AutoExecutor(folder=options.folder, cluster=options.cluster)
    # One task per node: task 0 supervises. slurm_use_srun=False would put it on the batch host alone, where the loss of
    # another node does not end it.
    executor.update_parameters(
        nodes=options.nodes if options.cluster in (None, "slurm") else 1,
        tasks_per_node=1,
        timeout_min=60,
        slurm_partition=options.partition,
    )
    jobs = executor.map_array(Sweep(), options.learning_rates, range(len(options.learning_rates)))
    for job, learning_rate in zip(jobs, options.learning_rates, strict=True):
        outcome = job.results()[0]
        print(
            f"job {job.job_id}, learning rate {learning_rate}: {outcome['name']} at step {outcome['step']}", flush=True
        )


if __name__ == "__main__":
    main()
