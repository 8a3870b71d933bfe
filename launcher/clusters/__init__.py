"""The schedulers. Each package implements the interfaces of `launcher.scheduler` and has a row in its SCHEDULERS.

slurm/            Slurm
local/            this machine alone: nodes are groups of processes
child_process.py  a child process of the supervisor
mpirun.py         finds mpirun
"""
