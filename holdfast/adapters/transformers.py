"""transformers' Trainer, whose state is in Holdfast's checkpoints.

    from holdfast.adapters.transformers import holdfast

    trainer = Trainer(model=model, args=args, train_dataset=data)
    holdfast(trainer).train()

After a restart, `train()` continues at the newest step with what an undisturbed run has there: weights, optimizer,
schedule, scaler, random numbers, the position in the data, TrainerState with its log history, callbacks that are
ExportableState, and the counters between two logs. The Trainer's own `resume_from_checkpoint` restores less.

The hooks are methods that transformers calls on itself; docs/guide/frameworks.md names the versions that were tried.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate.data_loader import DataLoaderShard
from transformers import Trainer
from transformers.trainer_callback import ExportableState

from ckpt import Checkpointer
from ckpt.errors import ConfigError, StateError
from holdfast.adapters.parts import AroundBatches, Values, end_script, warn_if_untried
from holdfast.rng import RngMoment

__all__ = ["holdfast"]

log = logging.getLogger("holdfast.adapters")

AnyTrainer = TypeVar("AnyTrainer", bound=Any)

_TRL = ("_metrics", "_total_train_tokens")
"""What TRL's trainers write into their logs: values since the last log, and the tokens since the beginning."""

_REFUSED = {
    "enable_jit_checkpoint": "Holdfast saves before a stop; its workers get no SIGTERM, for which this option waits",
    "auto_find_batch_size": "another batch size during training would change the samples of a step",
    "ignore_data_skip": "the Trainer would begin its epoch again after a restart, and see samples twice",
}


def holdfast(
    trainer: AnyTrainer, checkpointer: Checkpointer | None = None, *, attributes: Sequence[str] = ()
) -> AnyTrainer:
    """Gives a Trainer, or an instance of a subclass, Holdfast's checkpoints. Call its `train()` once.

    If all ranks stop before the last step (a resize, a preemption, the time limit), `train()` saves and raises
    SystemExit. So what follows in the script happens once, after the last step.

    Args:
        trainer: the Trainer; its class becomes a subclass of itself.
        checkpointer: default: that of the job file's `checkpoint` section. `train()` closes it.
        attributes: names of further attributes of the trainer to save, such as counters of a subclass. Their values
            are what a Checkpointer stores. A dict stays of its type. Those of TRL's logs are saved without being named.

    Returns:
        The same trainer.

    Raises:
        ConfigError: the Trainer has an option that Holdfast cannot keep its promises with. The message names it.
    """
    if not isinstance(trainer, Trainer):
        raise ConfigError(f"holdfast(): got a {type(trainer).__name__}, expected an instance of transformers' Trainer")
    if isinstance(trainer, _HoldfastTrainer):
        raise ConfigError("holdfast(): this trainer has Holdfast's checkpoints already; call holdfast() once")
    for option, reason in _REFUSED.items():
        if getattr(trainer.args, option, False):
            raise ConfigError(
                f"TrainingArguments: {option}=True cannot be used with Holdfast: {reason}; set it to False"
            )
    if trainer.is_deepspeed_enabled:
        raise ConfigError(
            "TrainingArguments: deepspeed cannot be used with holdfast(): the engine keeps the optimizer's partitions; "
            "use DDP or FSDP2"
        )
    warn_if_untried("transformers", "5.23")
    if hasattr(trainer, "_buffered_inputs"):
        log.warning(
            "%s keeps generated samples beyond a step, which no checkpoint has: after a restart it generates others, "
            "and ends with other weights than a run without one",
            type(trainer).__name__,
        )
    trainer.__class__ = type(f"Holdfast{type(trainer).__name__}", (_HoldfastTrainer, type(trainer)), {})
    trainer._hf_checkpointer = checkpointer
    trainer._hf_attributes = tuple(dict.fromkeys((*attributes, *_logged_by_trl(trainer))))
    trainer._hf = None
    return trainer


def _logged_by_trl(trainer: Any) -> list[str]:
    if not any(base.__module__.startswith("trl.") for base in type(trainer).__mro__):
        return []
    warn_if_untried("trl", "1.16")
    return [name for name in _TRL if hasattr(trainer, name)]


@dataclasses.dataclass(kw_only=True)
class _Run:
    """One call of train()."""

    ckpt: Checkpointer
    started: float = dataclasses.field(default_factory=time.time)
    saved: dict[str, Any] | None = None  # the trainer's part of the step that is restored, until it is in place
    folder: str | None = None  # what transformers resumes from: a TrainerState only
    epoch: int = 0
    epoch_began: int = 0  # the step after which this epoch began
    steps_per_epoch: int = 0
    step: int = -1  # the step whose end was seen last
    rng: RngMoment | None = None  # of the step that is restored
    epoch_rng: RngMoment | None = None  # as the epoch began, before its samples were drawn
    fetch_rng: RngMoment | None = None  # before this process read the batch that follows the newest step
    due: dict[int, RngMoment] = dataclasses.field(default_factory=dict)  # by number of a batch in the epoch
    history: list[str] = dataclasses.field(default_factory=list)  # entries of the log history, as JSON


class _HoldfastTrainer(Trainer):
    """The methods of a Trainer that save and restore. Everything else is the user's class."""

    _hf: Any  # the _Run of train()

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **keys: Any) -> Any:
        if self._hf is not None:
            raise ConfigError("train(): called twice; a job's checkpoints are those of one call of train()")
        with self._hf_checkpointer or Checkpointer.from_env() as ckpt:
            self._hf = run = _Run(ckpt=ckpt)
            if (step := ckpt.newest_step) is None:
                return super().train(resume_from_checkpoint, *args, **keys)
            run.saved = saved = ckpt.read(step).state["trainer"]
            self._check_batch(saved)
            evaluates, self.args.eval_on_start = self.args.eval_on_start, False  # it belongs to step 0
            try:
                with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
                    run.folder = folder
                    state = json.loads(saved["state"]) | {"log_history": json.loads(saved["history"])}
                    (Path(folder) / "trainer_state.json").write_text(json.dumps(state))
                    return super().train(folder, *args, **keys)
            finally:
                self.args.eval_on_start = evaluates

    # restore, in the order in which transformers calls

    def _load_from_checkpoint(self, folder: str, model: Any = None) -> None:
        if not self._is_ours(folder):  # a model to begin with; ours is loaded together with its optimizer
            super()._load_from_checkpoint(folder, model)

    def _init_training_state(self, *args: Any, **keys: Any) -> tuple[int, int]:
        found: tuple[int, int] = super()._init_training_state(*args, **keys)
        if (saved := self._hf.saved) is None:
            return found
        return saved["epoch"], saved["steps_in_epoch"] * self.args.gradient_accumulation_steps

    def _load_optimizer_and_scheduler(self, folder: str | None) -> None:
        if not self._is_ours(folder):
            super()._load_optimizer_and_scheduler(folder)
        elif self._hf.ckpt.load(self._everything()) != self.state.global_step:
            raise StateError("train(): the newest step has changed during the start; start the job again")

    def _load_scaler(self, folder: str | None) -> None:
        if not self._is_ours(folder):
            super()._load_scaler(folder)

    def _run_epoch(self, *args: Any, **keys: Any) -> None:
        run, loader = self._hf, keys["train_dataloader"]
        keys["start_time"] = run.started
        saved = self._put_counters()
        run.epoch, run.steps_per_epoch = keys["epoch"], keys["num_update_steps_per_epoch"]
        run.epoch_began = self.state.global_step - (saved["steps_in_epoch"] if saved else 0)
        if self.control.should_training_stop:
            return
        sampler = getattr(loader, "batch_sampler", None)
        is_stream = isinstance(getattr(loader, "dataset", None), torch.utils.data.IterableDataset)
        here = type(loader) is DataLoaderShard and sampler is not None and not is_stream and loader.num_workers == 0
        if saved is not None:
            _begin_epoch(loader, run.epoch)  # transformers reaches no sampler behind the batches that it skips
            if saved["steps_in_epoch"]:
                RngMoment.of(saved["epoch_rng"]).restore()
                first = saved["steps_in_epoch"] * self.args.gradient_accumulation_steps
                if here and saved["fetch_rng"]:
                    run.due, run.rng = {first: RngMoment.of(saved["fetch_rng"]), first + 1: run.rng}, None
            else:
                run.rng.restore()
        run.epoch_rng, run.fetch_rng = RngMoment.now(), None
        if here and not isinstance(sampler, _WatchedBatches):
            _WatchedBatches(sampler, self._before_batch).take_place(loader.base_dataloader)
        super()._run_epoch(*args, **keys)

    def _load_rng_state(self, folder: str | None) -> None:
        if not self._is_ours(folder):
            super()._load_rng_state(folder)
        elif self._hf.rng is not None:
            self._hf.rng.restore()

    def _before_batch(self, number: int) -> None:
        """Called before this process reads a batch. accelerate reads one batch ahead.

        A dataset or a collator may draw random numbers, as those of masked language models do. So the batch after the
        restored step is read with the generators as they were when it was read first, and the next one as they were
        when that step was saved.
        """
        if (state := self._hf.due.pop(number, None)) is not None:
            state.restore()
        self._hf.fetch_rng = RngMoment.now(self._hf.fetch_rng)

    def _put_counters(self) -> dict[str, Any] | None:
        """Restores what transformers sets to zero as training begins. Returns what was saved, the first time."""
        run, saved = self._hf, self._hf.saved
        if saved is None:
            return None
        run.saved = None
        self._tr_loss = torch.tensor(saved["loss"], device=self.args.device)
        self._total_loss_scalar = saved["total_loss"]
        self._globalstep_last_logged = saved["last_logged"]
        self._initial_global_step = saved["initial_step"]
        self._initial_num_input_tokens_seen = saved["initial_tokens"]
        self.current_flos = saved["flos"]
        run.started = time.time() - saved["trained_s"]
        self._put_callbacks(saved["callbacks"])
        self.control.should_training_stop = saved["stops"]
        for name in self._hf_attributes:
            if name in saved["attributes"]:
                setattr(self, name, _in_place(getattr(self, name, None), saved["attributes"][name]))
            else:
                log.warning("the checkpoint has no attribute %s of the trainer: it begins anew", name)
        return saved

    def _put_callbacks(self, saved: list[Any]) -> None:
        """In place: transformers itself makes new callbacks, with restore_callback_states_from_checkpoint."""
        left = [(name, state) for name, state in saved]
        for callback in self._exportable():
            found = next((entry for entry in left if entry[0] == type(callback).__name__), None)
            if found is None:
                log.warning("the checkpoint has no state of the callback %s: it begins anew", type(callback).__name__)
                continue
            left.remove(found)
            state = json.loads(found[1])
            for name, value in state.get("attributes", {}).items():
                setattr(callback, name, value)

    def _is_ours(self, folder: str | None) -> bool:
        return folder is not None and self._hf is not None and folder == self._hf.folder

    # save

    def _maybe_log_save_evaluate(self, *args: Any, **keys: Any) -> None:
        super()._maybe_log_save_evaluate(*args, **keys)
        run, step = self._hf, self.state.global_step
        ends_epoch = step == run.step  # the call for a step, then the one for the epoch that ends with it
        run.step = step
        done = step - run.epoch_began
        stops = self.control.should_epoch_stop or self.control.should_training_stop
        if not ends_epoch and (stops or done == run.steps_per_epoch):
            return  # the evaluation and the log of the epoch's end belong to this step
        if run.ckpt.should_save(step):
            run.ckpt.save(step, self._everything(run.epoch + 1 if ends_epoch else run.epoch, 0 if ends_epoch else done))
        if run.ckpt.should_stop(step) and not self.control.should_training_stop:
            end_script(run.ckpt, step)

    def _finalize_training(self, trial: Any, num_train_samples: Any, start_time: float) -> Any:
        self._put_counters()
        return super()._finalize_training(trial, num_train_samples, self._hf.started)

    def _everything(self, epoch: int = 0, steps_in_epoch: int = 0) -> dict[str, Any]:
        """The state for a Checkpointer.

        Args:
            epoch: that of the next step.
            steps_in_epoch: the steps of this epoch that are done.
        """
        run = self._hf

        def put(values: dict[str, Any]) -> None:
            run.saved, run.rng = values, RngMoment.of(values["rng"])

        state = {
            "model": self.model_wrapped,  # not `model`: DDP's parameters are stored once, not once for each rank
            "optimizer": self.optimizer,
            "schedule": self.lr_scheduler,
            "trainer": Values(lambda: self._trainer_values(epoch, steps_in_epoch), put),
        }
        if getattr(self.accelerator, "scaler", None) is not None:
            state["scaler"] = self.accelerator.scaler
        return state

    def _trainer_values(self, epoch: int, steps_in_epoch: int) -> dict[str, Any]:
        run, loss = self._hf, getattr(self, "_tr_loss", None)
        fields = {field.name: getattr(self.state, field.name) for field in dataclasses.fields(self.state)}
        history = fields.pop("log_history")
        del run.history[len(history) :]
        run.history += [json.dumps(entry) for entry in history[len(run.history) :]]
        return {
            "state": json.dumps(fields),
            "history": f"[{','.join(run.history)}]",
            "epoch": epoch,
            "steps_in_epoch": steps_in_epoch,
            "global_batch": self.get_total_train_batch_size(self.args),
            "loss": 0.0 if loss is None else loss.item(),
            "total_loss": getattr(self, "_total_loss_scalar", 0.0),
            "last_logged": getattr(self, "_globalstep_last_logged", 0),
            "initial_step": getattr(self, "_initial_global_step", 0),
            "initial_tokens": getattr(self, "_initial_num_input_tokens_seen", 0),
            "flos": self.current_flos,
            "trained_s": time.time() - run.started,
            "rng": RngMoment.now().values(),
            "epoch_rng": run.epoch_rng.values() if run.epoch_rng and steps_in_epoch else None,
            "fetch_rng": run.fetch_rng.values() if run.fetch_rng and steps_in_epoch else None,
            "callbacks": [[type(one).__name__, json.dumps(one.state())] for one in self._exportable()],
            "stops": self.control.should_training_stop,
            "attributes": {name: getattr(self, name) for name in self._hf_attributes},
        }

    def _exportable(self) -> list[Any]:
        return [one for one in self.callback_handler.callbacks if isinstance(one, ExportableState)]

    def _check_batch(self, saved: dict[str, Any]) -> None:
        """The same samples at each step need the same global batch, at every world size."""
        batch = self.get_total_train_batch_size(self.args)
        if batch != saved["global_batch"]:
            raise ConfigError(
                f"TrainingArguments: the global batch is {batch} samples, expected {saved['global_batch']}, as in the "
                "checkpoint; set gradient_accumulation_steps to global batch / (per_device_train_batch_size * ranks)"
            )


class _WatchedBatches(AroundBatches):
    """Says when this process is about to read a batch."""

    def __init__(self, batches: Any, before: Callable[[int], None]) -> None:
        super().__init__(batches)
        self._before = before

    def __iter__(self) -> Iterator[Any]:
        batches, number = iter(self._batches), 0
        while True:
            self._before(number)
            try:
                batch = next(batches)
            except StopIteration:
                return
            yield batch
            number += 1


def _in_place(value: Any, saved: Any) -> Any:
    """The saved value. Dicts stay the objects that they are, such as a defaultdict."""
    if not (isinstance(value, dict) and isinstance(saved, dict)):
        return saved
    found = {key: _in_place(value.get(key), entry) for key, entry in saved.items()}
    value.clear()
    value.update(found)
    return value


def _begin_epoch(loader: Any, epoch: int) -> None:
    """Tells a loader and all samplers behind it the epoch."""
    for found in (loader, getattr(loader, "sampler", None)):
        if found is not None and hasattr(found, "set_epoch"):
            found.set_epoch(epoch)
    if (batches := getattr(loader, "batch_sampler", None)) is not None:
        _begin_epoch(batches, epoch)
