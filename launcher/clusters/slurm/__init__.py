"""Slurm as a scheduler of jobs.

scheduler.py   submission, place, requeue and liveness of its jobs
submission.py  the submitit executor, which writes the batch script, its job and the job's state
checks.py      a job against the cluster, before it is submitted
findings.py    what `holdfast doctor` finds about Slurm, and the step in which it looks at a node
status.py      a job's state with Slurm's word; queue.py: the reason why it waits in the queue
cluster.py     the nodes of the job in which the supervisor runs: srun steps for runners and agents
boosters.py    submits, observes and ends the boosters, which are further Slurm jobs of a run
booster.py     the program of a booster's batch script: starts a runner on each of its nodes
drained.py     why Slurm drains a node, in words
srun_log.py    reads from srun's log on which nodes it could not start its tasks
requeue.py     the requeue of a job by one of its own processes
"""
