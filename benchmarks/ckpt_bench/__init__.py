"""`holdfast ckpt bench`: measures Holdfast, plain copies and torch's own checkpoints in one run on one machine.

run       the whole benchmark: makes the state and the folders, calls the parts, cleans up
saving    the time that a save blocks training
loading   the time of a load from the node's own memory
flushing  the speed of writes to a disk
objects   the speed of writes to and reads from S3
growth    memory and descriptors before and after many saves
scale     the time and size of a manifest of thousands of ranks
node      one node with its own agent
s3_server the S3 servers that the benchmark starts
peers     other projects that keep checkpoints in memory
plain     plain copies and plain writes, for comparison
figures   the results, as a table and as JSON
"""
