"""The node's checkpoint agent: one process per node (`python -m ckpt.agent`), one MPI world per attempt, never torch.

A phase in which all nodes take part has a `leader` (node rank 0 decides) and a `node` (every node acts). A room imports
only those below it here.

template       a warm process on each node, from which agents are forked
agent          connects the parts below; the agent's life from start to end
idle_exit      ends agents together with the program that started them
rejoin/        replaces a restore after lost agents were replaced during an attempt
restore/       chooses the step to restore at the start of an attempt; serves loading workers
save/          seals the workers' shards, then commits or drops a step
flush/         writes committed steps to the lower tiers; holds the lease on a namespace there
cadence        with `every_steps: auto`, computes how often to save
stop           agrees on the step boundary at which all ranks stop, or save at another cadence
protect/       makes copies and parity of a step, and rebuilds lost shards from them
saves          the committed saves that this node keeps, and the shards that it has
context        what all parts use
exchange       shards, whole or in part, from one node's memory to another's
process/       how agents start and end
rpc/           messages: between worker, runner and agent on a Unix socket, between agents over MPI
shards/        the shards on this node, in memory and on its own disk; which nodes have which, as values
storage_calls  blocking calls in threads, beside the event loop
tasks          tasks with one owner
"""
