"""The places below the nodes' memories where steps are kept.

tier       the contract
posix      a shared directory; lustre: its striping there; direct_io: past the page cache
nvme       a directory on each node's own disk
s3         a bucket; s3_bucket, s3_client: the way to it
open       the configured tiers, nearest first
reads      shards read from a tier, and verified
catalog    what steps a tier holds, and which can be restored
mark       whose folder it is
claim      which live run writes there; run_process: whether it can still; occupancy: the same on a node's own disk
retention  which steps may go
quarantine damaged ones, with the reason
copying    one step to another directory
namespace  the namespace that a path on a command line names
lookup     all tiers that a path or URL names
newest     the newest restorable step of each, for who supervises the run
throttle, parallel   how fast, and how many at once
"""
