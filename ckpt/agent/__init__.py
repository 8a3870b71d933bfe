"""The node's checkpoint agent: one process per node (`python -m ckpt.agent`), one MPI world per attempt, never torch.

A phase that all nodes take part in has a `leader` (node rank 0 decides) and a `node` (every node acts).

agent          wires the rooms together; the agent's life from start to end
save/          seal the workers' shards, then commit or drop a step
protect/       copies and parity of a step, and lost shards rebuilt from them
flush/         committed steps to the lower tiers; the lease on a namespace there
restore/       the step to restore at the start of an attempt; bytes for loading workers
rejoin/        in place of a restore, when lost agents are replaced in mid-attempt
stop           one step boundary at which all ranks stop
shards/        the shards on this node: in memory and on its own disk
rpc/           messages: between worker, runner and agent on a Unix socket, between agents over MPI
process/       how agents start and end
context        what all rooms use; timeouts: the agents' deadlines
storage_calls  blocking calls beside the event loop; tasks: tasks with one owner
"""
