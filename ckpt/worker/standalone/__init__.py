"""Agents that a training script starts itself, without a launcher.

memory_dir  the run's directory in the node's memory
one_node    one agent for a script on one node
mpi         one agent on each node of an MPI program
"""
