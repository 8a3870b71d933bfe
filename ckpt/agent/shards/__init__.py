"""The shards on this node, and which nodes have which.

memory_store    shards, parity, records and slots in the memory directory
growing_buffer  memory allocated a little ahead of the bytes that arrive
node_disk       shards on the node's own disk (the NVMe tier)
held            the shards on all nodes, by save
plan            the step to restore, and where its shards lie
"""
