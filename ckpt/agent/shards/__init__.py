"""The shards on this node.

held            the shards on all nodes, by save
memory_store    shards, parity, records and slots in the memory directory
growing_buffer  memory allocated a little ahead of the bytes that arrive
node_disk       shards on the node's own disk (the NVMe tier)
transfer        shards, whole or in part, from one node's memory to another's
"""
