"""From the start of an attempt to the last byte of its load.

leader    node rank 0: the newest step that is whole and verifies
node      inventory, verification and rebuild on this node
handover  nodes that train take over what only holders have
chosen    a plan for a step that a script chooses
serve     the bytes of any saved rank for a loading worker
prefetch  reads for loads while lost shards are still being rebuilt
"""
