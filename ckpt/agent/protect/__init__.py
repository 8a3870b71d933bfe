"""Parity over a redundancy set, and lost shards made from it.

parity          this node's parity and the shards rebuilt from it
encode          the rows of a node's parity, made at each save
gather_sum      sums of byte ranges of several nodes, made on one of them
rebuild_leader  node rank 0: which lost shards can be rebuilt, and where
"""
