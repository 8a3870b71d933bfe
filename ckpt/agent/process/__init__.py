"""How agents start and end.

launch     the command line and environment of agents, for launchers
shim       what mpirun or srun starts for an agent where the node has a template
template   a warm process on each node, from which agents are forked
daemon     mpirun's daemon on a node, where mpirun starts the agents
fabric     the settings of an agent's MPI on its node
lifetime   one agent for each memory directory
idle_exit  agents that a program has started itself end with it
"""
