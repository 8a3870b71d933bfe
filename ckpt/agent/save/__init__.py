"""One save: sealed on every node, published, protected, then committed or dropped.

leader    node rank 0: waits until all have sealed, published and protected, then commits
alike     what every rank stores although it is equal on all: reported once
node      seals this node's shards, makes its redundancy, commits or drops them
"""
