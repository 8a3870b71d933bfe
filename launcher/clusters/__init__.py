"""How runners and ckpt agents are started: on Slurm, or on this machine alone.

cluster.py   the contract, and open_cluster()
slurm.py     inside a Slurm job: one srun step for the runners, one per attempt for the agents
local.py     nodes are process groups on this machine; kill_node() loses one
"""
