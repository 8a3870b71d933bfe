"""The environment of a job's processes.

env_lint         what is wrong with variables of NCCL, EFA and torch
node_env         `holdfast node env`: the same for a node
fabric           NCCL over EFA: what to set, and what NCCL's log says
containers       which options of a job belong to its steps
failure_domains  the switch of each node
"""
