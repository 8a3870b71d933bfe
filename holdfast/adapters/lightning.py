"""Lightning's Trainer, whose state is in Holdfast's checkpoints.

    from holdfast.adapters.lightning import Trainer

    Trainer(max_epochs=3, strategy="ddp").fit(module, loader)

After a restart, `fit()` continues at the newest step with what an undisturbed run has there: weights, optimizers,
schedulers, precision plugin, loops, callbacks, data module, random numbers, the position in the data, the values that
`log()` has accumulated in this epoch, and torchmetrics. Lightning's own checkpoints have neither of the last four.

The state is saved between two batches, after a validation and after the end of an epoch. No Callback or CheckpointIO is
called there, so methods of the loops are extended. docs/guide/frameworks.md names the versions that were tried.
"""

from __future__ import annotations

import logging
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import lightning.pytorch
import torch
from lightning.fabric.utilities.data import _set_sampler_epoch
from lightning.pytorch.plugins.environments import SLURMEnvironment
from lightning.pytorch.strategies import (
    DDPStrategy,
    DeepSpeedStrategy,
    ModelParallelStrategy,
    SingleDeviceStrategy,
    Strategy,
)
from torchmetrics import Metric

from ckpt import Checkpointer
from ckpt.errors import ConfigError
from holdfast.adapters.parts import AroundBatches, Values, end_script, warn_if_untried
from holdfast.rng import RngMoment

__all__ = ["Trainer"]

log = logging.getLogger("holdfast.adapters")

_PATH = "Holdfast's newest step"
_HPARAMS = ("hparams_", "hyper_parameters")  # in the names of what Lightning saves to build a module, not to resume it


class Trainer(lightning.pytorch.Trainer):
    """Lightning's Trainer, with Holdfast's checkpoints. Takes the same arguments. Call `fit()` once.

    The numbers of nodes and devices are those of the job. If all ranks stop before the last step (a resize, a
    preemption, the time limit), `fit()` saves and raises SystemExit. So what follows in the script happens once, after
    the last step.
    """

    def __init__(self, *, checkpointer: Checkpointer | None = None, **keys: Any) -> None:
        """
        Args:
            checkpointer: default: that of the job file's `checkpoint` section. `fit()` closes it.
            keys: of Lightning's Trainer.

        Raises:
            ConfigError: an argument with which Holdfast cannot keep its promises. The message names it.
        """
        for option, variable in (("num_nodes", "GROUP_WORLD_SIZE"), ("devices", "LOCAL_WORLD_SIZE")):
            if (text := os.environ.get(variable)) is not None:
                if keys.get(option, "auto") not in ("auto", -1, "-1", int(text)):
                    log.warning("Trainer: %s=%r is replaced by %s, that of the job", option, keys[option], text)
                keys[option] = int(text)
        warn_if_untried("lightning", "2.6")
        super().__init__(**keys)
        strategy = self.strategy
        if isinstance(getattr(strategy, "cluster_environment", None), SLURMEnvironment):
            raise ConfigError(
                "Trainer: plugins: SLURMEnvironment takes ranks from Slurm's step, which has one task a node, and "
                "requeues the job by itself; leave it out: the ranks are found as under torchrun"
            )
        tried = isinstance(strategy, (DDPStrategy, ModelParallelStrategy, SingleDeviceStrategy))
        if not tried or isinstance(strategy, DeepSpeedStrategy):
            raise ConfigError(
                f"Trainer: strategy: got {type(strategy).__name__}, expected DDPStrategy ('ddp') or "
                "ModelParallelStrategy (FSDP2)"
            )
        strategy.__class__ = type(f"Holdfast{type(strategy).__name__}", (_HoldfastStrategy, type(strategy)), {})
        self.callbacks.insert(0, _BeginBatch())
        self._hf_checkpointer = checkpointer
        self._hf: _Fit | None = None

    def fit(
        self, model: Any, train_dataloaders: Any = None, val_dataloaders: Any = None, datamodule: Any = None,
        ckpt_path: Any = None, **keys: Any,
    ) -> None:  # fmt: skip
        """As Lightning's. `ckpt_path` is used if Holdfast has no step yet."""
        if self._hf is not None:
            raise ConfigError("fit(): called twice; a job's checkpoints are those of one call of fit()")
        with self._hf_checkpointer or Checkpointer.from_env() as ckpt:
            self._hf = self.strategy._hf = _Fit(self, ckpt)
            path = _PATH if self._hf.resumes else ckpt_path
            super().fit(model, train_dataloaders, val_dataloaders, datamodule, path, **keys)


class _HoldfastStrategy(Strategy):
    """Mixed into the class of a strategy: what it loads comes from the Checkpointer."""

    _hf: _Fit | None = None

    @property
    def restore_checkpoint_after_setup(self) -> bool:
        if self._hf is not None and self._hf.resumes:
            return True
        return bool(super().restore_checkpoint_after_setup)

    def load_checkpoint(self, path: Any, *args: Any, **keys: Any) -> dict[str, Any]:
        if path != _PATH or self._hf is None:
            return super().load_checkpoint(path, *args, **keys)
        return {**self._hf.load(), "state_dict": {}, "optimizer_states": []}

    def load_model_state_dict(self, checkpoint: dict[str, Any], strict: bool = True) -> None:
        if checkpoint["state_dict"]:
            super().load_model_state_dict(checkpoint, strict)

    def load_optimizer_state_dict(self, checkpoint: dict[str, Any]) -> None:
        if checkpoint["optimizer_states"]:
            super().load_optimizer_state_dict(checkpoint)

    def lightning_module_state_dict(self) -> dict[str, Any]:
        if self._hf is not None and self._hf.dumps:
            return {}
        return super().lightning_module_state_dict()

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        if self._hf is not None and self._hf.dumps:
            return {}
        return super().optimizer_state(optimizer)

    def process_dataloader(self, loader: Any) -> Any:
        loader = super().process_dataloader(loader)
        if self._hf is not None and self._hf.trainer.training:
            self._hf.begin_loader(loader)
        return loader


class _BeginBatch(lightning.pytorch.Callback):
    """The first of all callbacks, until the first batch. Lightning calls hooks of a callback at each step."""

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        if callable(signal.getsignal(signal.SIGTERM)):  # Lightning's; under Holdfast no worker gets SIGTERM
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        if trainer._hf is not None:
            trainer._hf.restore_rng()
        trainer.callbacks = [callback for callback in trainer.callbacks if callback is not self]


class _Fit:
    """One call of fit()."""

    def __init__(self, trainer: Trainer, ckpt: Checkpointer) -> None:
        self.trainer = trainer
        self.resumes = ckpt.newest_step is not None
        self.dumps = False  # the checkpoint of Lightning is without weights and optimizers
        self._ckpt = ckpt
        self._saved: dict[str, Any] | None = None  # what was loaded, until the first batch
        self._rng: RngMoment | None = None  # for the first batch
        self._epoch_rng: RngMoment | None = None  # as the epoch's samples were about to be drawn
        self._has_begun = False
        self._step = -1
        fit, epoch = trainer.fit_loop, trainer.fit_loop.epoch_loop
        _extend(fit, "load_state_dict", after=self._restart)
        _extend(fit, "on_advance_end", after=lambda: self._boundary(ends_epoch=True))
        _extend(epoch, "reset", before=self._begin_epoch)
        _extend(epoch, "on_run_start", before=self._begin_data, after=self._begin_batches)
        _extend(epoch, "on_advance_end", after=lambda: self._boundary(ends_epoch=False))

    # restore, in the order in which Lightning calls

    def load(self) -> dict[str, Any]:
        """Restores weights and optimizers. Returns the rest of a checkpoint of Lightning."""

        def put(values: dict[str, Any]) -> None:
            self._saved = values

        self._ckpt.load(self._everything(Values(lambda: {}, put)))
        assert self._saved is not None
        saved = self._saved
        world, passes = self.trainer.world_size, self.trainer.accumulate_grad_batches
        if world * passes != saved["world_size"] * saved["accumulation"]:
            raise ConfigError(
                f"Trainer: {world} ranks * accumulate_grad_batches {passes} is {world * passes}, expected "
                f"{saved['world_size'] * saved['accumulation']}, as in the checkpoint; set accumulate_grad_batches, so "
                "that the global batch stays the same"
            )
        # Lightning counts the batches of one rank
        progress = saved["checkpoint"]["loops"]["fit_loop"]["epoch_loop.batch_progress"]
        for counts in (progress["current"], progress["total"]):
            counts |= {name: count * passes // saved["accumulation"] for name, count in counts.items()}
        saved["batches"] = saved["batches"] * passes // saved["accumulation"]
        return dict(saved["checkpoint"])

    def _restart(self) -> None:
        """Lightning takes the end of an epoch for no restart: it would forget the loader's state."""
        fit = self.trainer.fit_loop
        fit._restarting = fit.epoch_loop.val_loop._restarting = True

    def begin_loader(self, loader: Any) -> None:
        """Called before an epoch's samples are drawn. A DataLoader skips the batches of the epoch that are done."""
        has_position = hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
        is_stream = isinstance(getattr(loader, "dataset", None), torch.utils.data.IterableDataset)
        batches = None if is_stream else getattr(loader, "batch_sampler", None)
        if not has_position and batches is None:
            raise ConfigError(
                f"fit(): the training data is a {type(loader).__name__} whose position cannot be saved; use a "
                "map-style dataset, or a loader with state_dict() and load_state_dict()"
            )
        done = 0
        if self._saved is not None:
            done = self._saved["batches"]
            # Lightning does so later, when processes that read ahead have begun with the order of epoch 0
            _set_sampler_epoch(loader, self.trainer.fit_loop.epoch_progress.current.processed)
            rng = RngMoment.of(self._saved["rng"])
            (RngMoment.of(self._saved["epoch_rng"]) if done else rng).restore()
            self._rng = rng if done else None
        self._epoch_rng = RngMoment.now()
        if has_position or isinstance(batches, _ResumedBatches):
            return
        before_first = self.restore_rng if getattr(loader, "num_workers", 0) == 0 else lambda: None
        _ResumedBatches(batches, lambda: 0 if self._has_begun else done, before_first).take_place(loader)
        if done:  # of Lightning, which knows nothing of the batches that are skipped
            warnings.filterwarnings("ignore", message=".*your dataloader is not resumable.*")

    def restore_rng(self) -> None:
        """Called before the first batch is read, or before it is used if other processes read it."""
        if self._rng is not None:
            self._rng.restore()
            self._rng = None

    def _begin_epoch(self) -> None:
        if self._saved is not None and not self._saved["batches"]:
            epoch = self.trainer.fit_loop.epoch_loop
            epoch._restarting = epoch.val_loop._restarting = False

    def _begin_data(self) -> None:
        if self._has_begun:  # the first time, Lightning has drawn the samples already
            self._epoch_rng = RngMoment.now()

    def _begin_batches(self) -> None:
        """The last call before the first batch: from here on, nothing tells the run from an undisturbed one."""
        self._has_begun = True
        if (saved := self._saved) is None:
            return
        self._saved = None
        fit = self.trainer.fit_loop
        fit._restarting = fit.epoch_loop._restarting = fit.epoch_loop.val_loop._restarting = False
        device = self.trainer.strategy.root_device
        for name, values in saved["logged"].items():
            getattr(self.trainer._logger_connector, name).update(_to(values, device))
        metrics = dict(self.trainer.lightning_module.named_modules())
        for name, state in saved["metrics"].items():
            for key, value in _to(state, device).items():
                setattr(metrics[name], key, value)
        results = fit.epoch_loop._results
        results.__class__ = type(type(results).__name__, (type(results),), {"__setitem__": _resume_result})
        results._hf_saved = _to(saved["results"], device)

    # save

    def _boundary(self, ends_epoch: bool) -> None:
        """Called between two batches, after the validation; and once more at the end of an epoch."""
        fit, step = self.trainer.fit_loop, self.trainer.global_step
        epoch = fit.epoch_loop
        if not ends_epoch and (epoch._should_accumulate() or epoch._num_ready_batches_reached() or epoch.done):
            return
        if step == self._step:
            return
        self._step = step
        if self._is_over():
            self._ckpt.should_save(step)  # it reports the step
            return
        if self._ckpt.should_save(step):
            batches = 0 if ends_epoch else epoch.batch_progress.current.completed
            self._ckpt.save(step, self._everything(Values(lambda: self._values(batches), lambda values: None)))
        if self._ckpt.should_stop(step):
            end_script(self._ckpt, step)

    def _is_over(self) -> bool:
        """A fit() that began here would skip the hooks of its end."""
        fit = self.trainer.fit_loop
        steps, epochs = 0 <= fit.max_steps <= self.trainer.global_step, fit.max_epochs or -1
        return steps or 0 <= epochs <= fit.epoch_progress.current.processed or self.trainer.should_stop

    def _everything(self, rest: Values) -> dict[str, Any]:
        return {"model": self.trainer.strategy.model, "optimizers": self.trainer.optimizers, "rest": rest}

    def _values(self, batches: int) -> dict[str, Any]:
        trainer, connector = self.trainer, self.trainer._logger_connector
        self.dumps = True
        try:
            dumped = trainer._checkpoint_connector.dump_checkpoint(False)
        finally:
            self.dumps = False
        left_out = ("state_dict", "optimizer_states")
        checkpoint = {
            key: value for key, value in dumped.items() if key not in left_out and not any(p in key for p in _HPARAMS)
        }
        results = trainer.fit_loop.epoch_loop._results
        return {
            "checkpoint": checkpoint,
            "batches": batches,
            "world_size": trainer.world_size,
            "accumulation": trainer.accumulate_grad_batches,
            "rng": RngMoment.now().values(),
            "epoch_rng": self._epoch_rng.values() if self._epoch_rng and batches else None,
            "logged": {
                name: dict(getattr(connector, name))
                for name in ("_callback_metrics", "_logged_metrics", "_progress_bar_metrics")
            },
            "metrics": {
                name: {key: getattr(metric, key) for key in (*metric._defaults, "_update_count")}
                for name, metric in trainer.lightning_module.named_modules()
                if isinstance(metric, Metric)
            },
            "results": {
                key: {name: getattr(result, name) for name in (*result._defaults, "_update_count")}
                for key, result in results.items()
                if result.is_tensor and not result.has_reset
            },
        }


class _ResumedBatches(AroundBatches):
    """Begins later until the first batch is used. Lightning makes more than one iterator."""

    def __init__(self, batches: Any, skipped: Callable[[], int], before_first: Callable[[], None]) -> None:
        super().__init__(batches)
        self._skipped = skipped
        self._before_first = before_first

    def __iter__(self) -> Iterator[Any]:
        return self._begin_at(self._skipped())

    def _begin_at(self, number: int) -> Iterator[Any]:
        batches = iter(self._batches)
        for _ in range(number):
            next(batches)
        self._before_first()
        yield from batches


def _extend(
    loop: Any, name: str, before: Callable[[], None] = lambda: None, after: Callable[[], None] = lambda: None
) -> None:
    """Calls functions before and after each call of a loop's method."""
    method = getattr(loop, name)

    def extended(*args: Any, **keys: Any) -> Any:
        before()
        result = method(*args, **keys)
        after()
        return result

    setattr(loop, name, extended)


def _resume_result(results: Any, key: str, result: Any) -> None:
    """Sets a key of Lightning's results. A value that is logged for the first time here continues the saved one."""
    dict.__setitem__(results, key, result)
    for name, value in results._hf_saved.pop(key, {}).items():
        setattr(result, name, value)


def _to(values: dict[str, Any], device: torch.device) -> dict[str, Any]:
    moved: dict[str, Any] = lightning.pytorch.utilities.move_data_to_device(values, device)
    return moved
