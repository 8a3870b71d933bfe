"""What runs inside the training process.

cadence   which steps are saved, and where all ranks stop
session   this worker's link with its node's agent, and its slots
staging   from live state to a slot: the only time that training waits
saved     one saved step's shards, verified as they are read
restore   from a saved step to live state
leaves    what counts as a tensor, and which box of it this rank holds
solo      a one-node agent of our own, where no launcher has started any
"""
