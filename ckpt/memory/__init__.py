"""Memory that the workers and the agent of a node share.

arena  the reused slots that shards are staged into
board  one row per worker: its step, its boundary; read by the node's runner and agent
"""
