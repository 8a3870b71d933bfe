"""From a saved step to live state.

match          compares a saved step with the live state, then fills the live state
read_plan      which parts of which shards fill a live tensor
shard_reader   a saved step's shards, verified as they are read
verified_copy  copies and checksums in one pass, by several threads
contents       a saved step's values and, on demand, its tensors, without a live state
"""
