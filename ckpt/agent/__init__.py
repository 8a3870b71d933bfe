"""The node's checkpoint agent: one process per node (`python -m ckpt.agent`), one MPI world per attempt, never torch.

launch     how a launcher starts agents: command line and environment
messages   frames on the agent's Unix socket
client     the two ends that talk to an agent: Monitor (the node's runner), AgentClient (a worker)
server     wires the parts below; the process's life
listener   the Unix socket: who is connected, who gets which event
peers      calls and byte transfers between agents, with deadlines
holdings   what this node's memory holds: shards and their records
protect    one save: seal, redundancy, commit
drain      one save on its way to the shared tier
recover    agreeing on what to restore, and making lost shards again
loading    gives a loading worker the bytes of any saved rank
stop       one common step boundary for all ranks
"""
