"""One save: sealed on every node, published, protected, then committed or dropped.

leader    node rank 0: waits until all have sealed, published and protected, then commits
node      seals this node's shards, makes its redundancy, commits or drops them
"""
