"""The samples of each rank at each step, continued across restarts and resizes.

    batch_plan   micro-batch and gradient accumulation for a world size
    sampler      the order of an epoch's samples, and the position in it
    loader       counts what the training loop has taken from a DataLoader
    stream       counts what it has taken from an iterable data set

Nothing here imports torch.
"""

from __future__ import annotations

from ckpt.data.batch_plan import BatchPlan, batch_plan
from ckpt.data.loader import ElasticLoader
from ckpt.data.sampler import ElasticSampler
from ckpt.data.stream import ElasticStream

__all__ = ["BatchPlan", "ElasticLoader", "ElasticSampler", "ElasticStream", "batch_plan"]
