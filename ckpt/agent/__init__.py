"""The node's checkpoint agent: one process per node (`python -m ckpt.agent`), one MPI world per attempt, never torch.

A phase in which all nodes take part has a `leader` (node rank 0 decides) and a `node` (every node acts).

agent          connects the parts below; the agent's life from start to end
save/          seals the workers' shards, then commits or drops a step
protect/       makes copies and parity of a step, and rebuilds lost shards from them
flush/         writes committed steps to the lower tiers; holds the lease on a namespace there
restore/       chooses the step to restore at the start of an attempt; serves loading workers
rejoin/        replaces a restore after lost agents were replaced during an attempt
stop           agrees on the step boundary at which all ranks stop, or save at another cadence
cadence        with `every_steps: auto`, computes how often to save
shards/        the shards on this node: in memory and on its own disk
rpc/           messages: between worker, runner and agent on a Unix socket, between agents over MPI
process/       how agents start and end
context        what all parts use
storage_calls  blocking calls in threads, beside the event loop
tasks          tasks with one owner
"""
