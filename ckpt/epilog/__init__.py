"""After a job's end: the newest step in its nodes' memories goes to the tiers with `on_job_end`.

Slurm's epilog starts `python -m ckpt.epilog DIRECTORY` on every node, as the job's user. There are no agents and no
MPI any more: the nodes meet in the tier itself, by small files beside the step's own.

request  what the agents leave in the memory directory: which tiers, and how to reach them
scan     what a node's memory still holds of that run, verified
flush    one node's part in bringing the newest whole step to one tier
"""
