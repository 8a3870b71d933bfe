"""litData's chunks of samples in a bucket, read by index, so that an ElasticSampler has the order and the position.

    from holdfast.adapters.litdata import ChunkDataset

    dataset = ChunkDataset("s3://bucket/optimized", max_cache_size="200GB")
    sampler = ElasticSampler(dataset, plan, seed=1, shards=dataset.shards)
    loader = ElasticLoader(DataLoader(dataset, plan.micro_batch, sampler=sampler, num_workers=2))

takes the place of litData's StreamingDataset and StreamingDataLoader. The loader's state is the position: the job
continues at any world size, with every sample once. A chunk is downloaded when its first sample is read, once a node.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path
from typing import Any

from litdata import StreamingDataset
from litdata.streaming.sampler import ChunkedIndex

from ckpt.errors import ConfigError
from holdfast.adapters.parts import warn_if_untried
from holdfast.base.environment import Variable

__all__ = ["ChunkDataset"]

_OF_THE_SAMPLER = ("shuffle", "seed", "drop_last", "subsample", "num_canonical_nodes")


class ChunkDataset:
    """A map-style dataset over what `litdata.optimize` has written.

    Attributes:
        shards: the number of samples of each chunk.
    """

    def __init__(self, url: str, cache_dir: Path | None = None, **options: Any) -> None:
        """Downloads the index.

        Args:
            url: the directory of the chunks, such as s3://bucket/optimized. The keys come from where boto3 finds them.
            cache_dir: the node's cache. Default: HOLDFAST_CACHE_DIR, or litData's own.
            options: litData's for its StreamingDataset, such as `max_cache_size`, `storage_options`, `transform`.

        Raises:
            ConfigError: an option is about the order of the samples, which is the ElasticSampler's.
        """
        warn_if_untried("litdata", "0.2.76")
        if refused := [name for name in _OF_THE_SAMPLER if name in options]:
            raise ConfigError(
                f"ChunkDataset: got {', '.join(refused)}: the order of the samples is that of the ElasticSampler; "
                "give it to the ElasticSampler or the batch_plan"
            )
        directory = cache_dir or os.environ.get(Variable.CACHE_DIR)
        self._data = StreamingDataset(url, cache_dir=None if directory is None else str(directory), **options)
        self.shards = [end - begin for begin, end in self._data.region_of_interest]
        self._ends = list(accumulate(self.shards))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Any:
        if self._data.cache is None:
            self._data[:0]  # opens it for whole chunks: by default a single index reads the bytes of one sample
        return self._data[ChunkedIndex(int(index), bisect_right(self._ends, index))]
