"""The part of a checkpoint that runs inside the training process.

session     the worker's connection to its node's agent, and its slots
save/       from live state to a slot
load/       from a saved step to live state
standalone/ agents of the worker's own, where no launcher has started any
dcp         a storage writer and a storage reader for torch.distributed.checkpoint
boundaries  which steps are saved, and where all ranks stop: no collective, one look at shared memory per step
tensors     what counts as a tensor, and how its bytes lie in memory
placement   the boxes of a tensor that this rank holds, and the ranks that hold the others
lazy_torch  torch, imported only when a state contains an object of torch's
sigterm     SIGTERM left to the agreed stop
timeouts    the deadlines of a worker
"""
