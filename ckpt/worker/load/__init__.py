"""Fills live state from a saved step.

match          compares a saved step with the live state, then fills the live state
read_plan      the parts of shards that fill each live tensor
per_rank       refuses shards of another world size
shared_memory  refuses saved values that would overwrite each other in the live state
shard_reader   a saved step's shards, verified as they are read
verified_copy  copies and verifies in one pass, with several threads
contents       reads a saved step's values, and its tensors on demand, without a live state
"""
