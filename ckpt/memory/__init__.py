"""Memory that the workers and the agent of a node share.

arena  the reused slots into which shards are staged
board  one row per worker: its step and boundary; read by the node's runner and agent
"""
