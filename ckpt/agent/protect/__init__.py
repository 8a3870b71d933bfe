"""The redundancy of saves over sets of nodes, and the rebuild of lost shards from it.

leader        node rank 0: which lost shards can be rebuilt, and where
node          makes this node's copies and parity, and rebuilds shards from parity
encode        the rows of a node's parity
gather_sum    sums of byte ranges that are on different nodes
"""
