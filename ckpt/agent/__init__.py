"""The node's checkpoint agent: one process per node (`python -m ckpt.agent`), one MPI world per attempt, never torch.

launch     how a launcher starts agents: command line and environment
fabric     what an agent's MPI looks for on its node
messages   frames on the agent's Unix socket; credentials: who is at its other end
client     the two ends that talk to an agent: Monitor (the node's runner), AgentClient (a worker)
server     wires the parts below together
lifetime   one agent for each memory directory; no wait without an end

coordinator  node rank 0 leads each save: all sealed, all protected, commit
saves        a save on one node: seal, copies for others, commit or drop
drain        a committed save goes to the shared tier
recover      node rank 0 leads a new attempt to one restore plan
parting      agents that a program has started itself end with it
tenure       this run's claim to its namespace, in the tiers that all nodes see
verdict      whether the run of another claim has ended, by the launcher's word
restore      a node's part in it: inventory, verify, rebuild
stock        what nodes and lower tiers hold as agents come up
rejoin       instead of both, when agents are lost in mid-attempt and others take their place
loading      gives a loading worker the bytes of any saved rank
ahead        reads for loads while lost shards are still being made again
stop         one common step boundary for all ranks

rebuilding   node rank 0 has lost shards made again from parity
parities     a node's parity: made at each save, what lost shards come from
sums         sums of byte ranges, gathered on one of the nodes that have them and sent on

exchange   shards, whole or in part, from one node's memory to another's
peers      calls and byte transfers between agents, with deadlines
holdings   what this node's memory holds: shards and their records; shelf: what its own disk does
listener   the Unix socket: who is connected, who gets which event
context, deadlines, plan, threads   what the parts above share
"""
