"""Agents that a training script starts itself, where no launcher has started any.

memory_dir  the run's directory in the node's memory, its owner and its name
one_node    one agent for a script on one node
mpi         one agent on each node of an MPI program
"""
