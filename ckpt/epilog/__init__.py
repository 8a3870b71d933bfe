"""After a job's end, writes the newest step in its nodes' memory to the tiers with `on_job_end`.

Slurm's epilog starts `python -m ckpt.epilog DIRECTORY` on every node as the job's user. The agents and their MPI world
have ended. The nodes coordinate through small files in the tier, next to the step's own files.

request  what the agents leave in the memory directory: the tiers, and how to reach them
scan     the verified shards of the run in a node's memory
flush    one node's part in writing the newest complete step to one tier
"""
