"""The start and the end of agents.

launch     the command line and environment of agents, for launchers
shim       the process that mpirun or srun starts for an agent, if the node has a template
daemon     mpirun's daemon on a node, if mpirun starts the agents
fabric     the settings of an agent's MPI on its node
lifetime   one agent for each memory directory
"""
