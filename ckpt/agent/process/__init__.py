"""How agents start and end.

launch     the command line and environment of agents, for launchers
fabric     the settings of an agent's MPI on its node
lifetime   one agent for each memory directory
idle_exit  agents that a program has started itself end with it
"""
