"""torchtitan's checkpoint manager, with Holdfast's checkpoints in place of its folder. Give it to the Trainer's config:

    from holdfast.adapters.torchtitan import CheckpointManager

    config.checkpoint = CheckpointManager.Config(enable=True)

The cadence, the tiers and how many steps are kept are those of the job file's `checkpoint` section. Without a step of
Holdfast's, torchtitan's own rules say what is loaded: its folder, `initial_load_path`, or nothing.

The hooks are torchtitan's; docs/guide/frameworks.md names the version that was tried.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchtitan.components import checkpointer

from ckpt import Checkpointer
from ckpt.errors import ConfigError
from holdfast.adapters.parts import Values, end_script, warn_if_untried
from holdfast.rng import RngMoment

__all__ = ["CheckpointManager"]

_RNG = "holdfast_rng"


class CheckpointManager(checkpointer.CheckpointManager):
    """Saves to Holdfast, and ends the script at a step at which all ranks stop."""

    @dataclass(kw_only=True, slots=True)
    class Config(checkpointer.CheckpointManager.Config):
        """torchtitan's. `folder`, `interval`, `keep_latest_k` and `async_mode` say nothing about Holdfast's saves."""

        def __post_init__(self) -> None:
            checkpointer.CheckpointManager.Config.__post_init__(self)
            if self.exclude_from_loading:
                raise ConfigError(
                    f"checkpoint.exclude_from_loading={self.exclude_from_loading}: a restart would go on without them; "
                    "leave it empty, or load with torchtitan's own manager"
                )
            if self.create_seed_checkpoint:
                raise ConfigError("checkpoint.create_seed_checkpoint: make the seed with torchtitan's own manager")

    def __init__(self, config: Config, **keys: Any) -> None:
        super().__init__(config, **keys)
        self._rng: RngMoment | None = None  # of the step that is restored, until the first forward pass
        self._model = keys["model_parts"][0]
        if self.enable:
            warn_if_untried("torchtitan", "0.3")
            self._holdfast = Checkpointer.from_env()
            self.states[_RNG] = Values(lambda: RngMoment.now().values(), self._keep_rng)

    def _load(self, step: int = -1) -> bool:
        if step == -1 and self._holdfast.newest_step is None:
            return bool(super()._load(step))
        self._holdfast.load(self.states, step=None if step == -1 else step)
        # What begins the iteration of the data draws a random number, as it did in the undisturbed run's first step.
        self._hook = self._model.register_forward_pre_hook(self._restore_rng)
        return True

    def _save(self, curr_step: int, last_step: bool = False) -> bool:
        if self.load_only:
            return False
        due = self._holdfast.should_save(curr_step) or last_step
        if due:
            self._holdfast.save(curr_step, self.states, flush=last_step)
        if last_step and self.last_save_in_hf:
            self._save_last_step(curr_step)  # the export, in the folder
        elif self._holdfast.should_stop(curr_step) and not last_step:
            end_script(self._holdfast, curr_step)
        return due

    def _close(self) -> None:
        if (ckpt := getattr(self, "_holdfast", None)) is not None:
            ckpt.close()
        super()._close()

    def _keep_rng(self, values: dict[str, Any]) -> None:
        self._rng = RngMoment.of(values)

    def _restore_rng(self, *of_hook: Any) -> None:
        self._hook.remove()
        if self._rng is not None:
            self._rng.restore()
            self._rng = None
