"""HyperPod's names for Holdfast's engine; see ckpt.adapters.sagemaker."""

from ckpt.adapters.sagemaker import (
    SageMakerCheckpointConfig,
    SageMakerTieredStorageReader,
    SageMakerTieredStorageWriter,
)

__all__ = ["SageMakerCheckpointConfig", "SageMakerTieredStorageReader", "SageMakerTieredStorageWriter"]
