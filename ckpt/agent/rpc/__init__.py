"""Messages to and from an agent.

messages       the catalogue of all messages
framing        frames on the Unix socket
credentials    the process at the other end of a Unix socket
worker_socket  the agent's Unix socket: connected workers and runner, and which event goes to which
client         the runner's end (Monitor) and the worker's end (AgentClient)
peers          calls and byte transfers between agents, with deadlines
transport      the only door to MPI
"""
