"""Committed steps on their way to the lower tiers.

leader         node rank 0: which tiers a save goes to, and the commit there
node           this node's shards written to each tier
lease          this run's claim to its namespace, in the tiers that all nodes see
run_liveness   whether the run that holds a claim has ended
tier_contents  the steps in the lower tiers when agents start
"""
