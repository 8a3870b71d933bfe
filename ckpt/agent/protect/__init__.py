"""Redundancy over a set of nodes, and lost shards made from it.

leader        node rank 0: which lost shards can be rebuilt, and where
node          this node's copies and parity, and the shards rebuilt from parity
encode        the rows of a node's parity, made at each save
gather_sum    sums of byte ranges of several nodes, made on one of them
"""
