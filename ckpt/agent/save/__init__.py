"""One save: sealed on every node, protected, then committed or dropped.

leader    node rank 0: all sealed, all protected, commit
node      seals this node's shards, makes its copies, commits or drops them
"""
