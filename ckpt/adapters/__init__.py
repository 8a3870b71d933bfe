"""Other ways into the same shards.

dcp   torch.distributed.checkpoint: a storage writer and a storage reader
"""
