"""`holdfast ckpt bench`: the engine beside plain copies and torch's own checkpoints, in one run on one machine.

run       the whole benchmark: makes the state and the folders, calls the parts, cleans up
saving    what a save costs training
loading   what a load from the node's own memory costs
flushing  bytes per second to a disk
objects   bytes per second to and from S3
growth    what many saves leave behind
scale     what a manifest of thousands of ranks costs
node      one node with an agent of its own
s3_server S3 servers of our own
peers     other projects that hold checkpoints in memory
plain     the floor: plain copies, plain writes
figures   the results, as a table and as JSON
"""
