"""A parameter sweep with submitit's own executor, as in hydra's submitit launcher.

    python sweep.py --partition train --nodes 2 --learning-rates 0.1 0.01

The launcher passes one callable to `AutoExecutor.map_array`, once per configuration. Its `__call__` runs
`Torchrun(...)()`, which trains on the nodes of the current job. Its `checkpoint` has submitit run the callable again
after a preemption. A hydra application needs no more: call Torchrun in the function that hydra runs.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import submitit

from holdfast import Torchrun

SCRIPT = Path(__file__).with_name("train.py")


class Sweep:
    """The callable that submitit runs once for each configuration."""

    def __call__(self, learning_rate: float, number: int) -> dict[str, Any]:
        namespace = f"sweep-{number}"
        run = Torchrun(
            SCRIPT, "--learning-rate", str(learning_rate), name=namespace, checkpoint={"namespace": namespace}
        )
        return run()

    def checkpoint(self, learning_rate: float, number: int) -> submitit.helpers.DelayedSubmission:
        """Have the same configuration run again after a preemption. It resumes from its checkpoints."""
        return submitit.helpers.DelayedSubmission(self, learning_rate, number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--cluster", choices=["slurm", "local", "debug"], help="default: slurm if it is installed, else local"
    )
    parser.add_argument("--partition")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--folder", default="sweep", help="a folder on a file system that all nodes share")
    parser.add_argument("--learning-rates", type=float, nargs="+", default=[0.1, 0.01])
    options = parser.parse_args()
    executor = submitit.AutoExecutor(folder=options.folder, cluster=options.cluster)
    # One task per node; task 0 is the supervisor. With slurm_use_srun=False only the batch host would run a task, and
    # the loss of another node would not end it.
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
