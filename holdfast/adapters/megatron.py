"""Megatron-core's sharded state dicts in Holdfast's checkpoints, in both of Megatron's ways.

    from holdfast.adapters.megatron import ShardedState

    with Checkpointer.from_env() as ckpt:
        sharded, step = ShardedState(ckpt), 0
        if ckpt.newest_step is not None:
            loaded = sharded.load(state_dict())    # ShardedTensors and ShardedObjects, as for dist_checkpointing.load
            step = put(loaded)
        ...
            if ckpt.should_save(step): sharded.save(step, state_dict())

takes the place of `dist_checkpointing.save` and `load`. Tensors load at any other parallelism. No directory is needed.

    checkpointing_context["local_checkpoint_manager"] = LocalCheckpointManager(ckpt)

takes the place of NVRx's LocalCheckpointManager. The parallelism has to be the same then.

Megatron pickles objects that are not tensors. Load only steps of your own runs.

The functions used are Megatron's own, some of them private; docs/guide/frameworks.md names the version that was tried.
"""

from __future__ import annotations

import pickle
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from megatron.core.dist_checkpointing.dict_utils import merge, nested_values
from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor, apply_factory_merges
from megatron.core.dist_checkpointing.state_dict_utils import load_preprocess, save_preprocess
from megatron.core.dist_checkpointing.strategies import torch as torch_dist
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncRequest
from megatron.core.dist_checkpointing.strategies.base import SaveShardedStrategy
from megatron.core.dist_checkpointing.strategies.fully_parallel import FullyParallelSaveStrategyWrapper
from megatron.core.dist_checkpointing.utils import extract_sharded_base, force_all_tensors_to_non_fp8

from ckpt import Checkpointer
from holdfast.adapters.parts import warn_if_untried

__all__ = ["LocalCheckpointManager", "ShardedState"]

_COMMON = "holdfast_common"  # what is in no ShardedTensor or ShardedObject; Megatron's common.pt


class ShardedState:
    """`dist_checkpointing.save` and `load` over a Checkpointer."""

    def __init__(self, ckpt: Checkpointer, group: torch.distributed.ProcessGroup | None = None) -> None:
        """
        Args:
            group: ranks that divide their equal tensors among them for a save, as in Megatron's "fully parallel" saves.
                Default: all ranks.
        """
        warn_if_untried("megatron-core", "0.16")
        self._ckpt = ckpt
        self._write = _Write(ckpt)
        self._divide = FullyParallelSaveStrategyWrapper(self._write, group, do_cache_distribution=True)
        self._is_validated = False

    def save(self, step: int, sharded_state_dict: Any, *, flush: bool = False) -> None:
        """Saves a step. The structure of the state is that of the first save.

        Collective: the first call only, in which Megatron validates the sharding and divides the tensors.

        Args:
            flush: as in Checkpointer.save.

        Raises:
            CheckpointingException: Megatron refuses the state.
        """
        sharded, common = save_preprocess(sharded_state_dict, validate_access_integrity=not self._is_validated)
        self._is_validated = True
        self._write.step, self._write.flush = step, flush
        self._divide.save({"state": sharded, _COMMON: _common(common)}, "")

    def load(self, sharded_state_dict: Any, *, step: int | None = None) -> Any:
        """Loads `ckpt.newest_step`, or a chosen step. Collective.

        Returns:
            The state dict, as of `dist_checkpointing.load`.

        Raises:
            CheckpointError: there is no such step.
        """
        force_all_tensors_to_non_fp8(sharded_state_dict)
        sharded, own, factories = load_preprocess(sharded_state_dict)
        sharded, _ = extract_sharded_base(sharded)
        found = _read({"state": sharded, _COMMON: _common(None)}, self._ckpt, step)
        merge(loaded := found[_COMMON], own)
        merge(loaded, found["state"])
        return apply_factory_merges(loaded, factories)


class LocalCheckpointManager:
    """The interface of NVRx's manager of the same name, which Megatron calls for its local checkpoints."""

    def __init__(self, ckpt: Checkpointer) -> None:
        warn_if_untried("megatron-core", "0.16")
        self._ckpt = ckpt

    def find_latest(self) -> int:
        """The newest step; -1 if there is none."""
        step = self._ckpt.newest_step
        return -1 if step is None else step

    def save(self, state_dict: Any, iteration: int, is_async: bool = False) -> AsyncRequest | None:
        """Saves a TensorAwareStateDict. With `is_async` the request that is returned has nothing left to do."""
        tensors = state_dict.pop_tensors()
        try:
            hollow = pickle.dumps(state_dict)
        finally:
            state_dict.insert_tensors(tensors)
        self._ckpt.save(iteration, {"tensors": {str(i): one for i, one in enumerate(tensors)}, "hollow": hollow})
        return AsyncRequest(None, (), []) if is_async else None

    def load(self) -> tuple[Any, str]:
        """The TensorAwareStateDict of the newest step, on its devices, and a name."""
        step = self._ckpt.newest_step
        saved = self._ckpt.read(step).state
        state_dict = pickle.loads(saved["hollow"])
        state_dict.insert_tensors([saved["tensors"][str(i)].read() for i in range(len(saved["tensors"]))])
        state_dict.restore_tensor_device(non_blocking=False)
        return state_dict, f"iter_{step:07d}"


class _Write(SaveShardedStrategy):
    """Stages this rank's tensors. Each rank plans for itself, so there is no message between ranks."""

    can_handle_sharded_objects = True

    def __init__(self, ckpt: Checkpointer) -> None:
        super().__init__("torch_dist", 1)
        self._ckpt = ckpt
        self.step, self.flush = 0, False

    def save(self, sharded_state_dict: Any, checkpoint_dir: Any) -> None:
        by_key, _, _ = torch_dist._replace_state_dict_keys_with_sharded_keys(sharded_state_dict, True)
        planner = torch_dist.MCoreSavePlanner(dedup_replicated_tensors=False, flatten_state_dict=False)
        planner.set_up_planner(torch_dist.mcore_to_pyt_state_dict(by_key, False))
        plan = planner.create_decentralized_global_plan(planner.create_local_plan())
        self._ckpt.dcp_writer(self.step, flush=self.flush).write_data(planner.finish_plan(plan), planner)


def _common(value: Any) -> ShardedObject:
    return ShardedObject(_COMMON, value, (1,), (0,), replica_id=torch.distributed.get_rank())


def _read(sharded: Any, ckpt: Checkpointer, step: int | None) -> Any:
    """As Megatron's TorchDistLoadShardedStrategy does with a directory."""
    tensors = [one for one in nested_values(sharded) if isinstance(one, ShardedTensor)]
    planner = torch_dist.MCoreLoadPlanner(
        shapes_validation_sharded_tensors=[one for one in tensors if not one.allow_shape_mismatch],
        allow_shape_mismatch_sharded_tensors={one.key: one for one in tensors if one.allow_shape_mismatch},
    )
    by_key, *mappings = torch_dist._replace_state_dict_keys_with_sharded_keys(sharded)
    torchs: dict[str, Any] = torch_dist.mcore_to_pyt_state_dict(by_key, True)
    dcp.load(torchs, storage_reader=ckpt.dcp_reader(step), planner=planner)
    unwrapped = {key: torch_dist._unwrap_pyt_sharded_tensor(value) for key, value in torchs.items()}
    found = torch_dist._replace_sharded_keys_with_state_dict_keys(unwrapped, *mappings)
    torch_dist._restore_dict_types(found, sharded)
    return found
