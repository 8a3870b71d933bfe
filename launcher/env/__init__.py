"""The environment of a job's processes.

env_lint         lints variables of NCCL, EFA and torch
node_env         `holdfast node env`
fabric           sets the variables for NCCL over EFA, and reads NCCL's log
containers       the options of a job that belong to its steps
failure_domains  the switch of each node
"""
