"""What the adapters share: values and samplers that they put in place of others, and the end of a script at a stop."""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from ckpt import Checkpointer

log = logging.getLogger("holdfast.adapters")


class Values:
    """An object for a Checkpointer's state whose values two functions give and take."""

    def __init__(self, get: Callable[[], dict[str, Any]], put: Callable[[dict[str, Any]], None]) -> None:
        self.state_dict = get
        self.load_state_dict = put


class AroundBatches(torch.utils.data.BatchSampler):
    """Takes the place of a DataLoader's batch sampler. A subclass gives the batches."""

    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def take_place(self, loader: Any) -> None:
        """Makes this the batch sampler of a loader. DataLoader itself refuses another one."""
        object.__setattr__(loader, "batch_sampler", self)

    def __len__(self) -> int:
        return len(self._batches)

    def __getattr__(self, name: str) -> Any:
        if name == "_batches":
            raise AttributeError(name)
        return getattr(self._batches, name)


def end_script(ckpt: Checkpointer, step: int) -> NoReturn:
    """Ends this process at a step at which all ranks stop, once its save is complete.

    What a script does after its training (a test, the export of the model) belongs to the last step only.

    Raises:
        SystemExit: always, with code 0.
    """
    ckpt.close()
    log.warning("the job stops at step %d, before its last step: this script ends here and continues from it", step)
    raise SystemExit(0)


def warn_if_untried(package: str, tried: str) -> None:
    """Warns about a version of a framework with which its adapter was not tried. Its own methods may have changed.

    Args:
        package: name of the distribution.
        tried: the beginning of the versions that were tried, such as "5.23".
    """
    version = importlib.metadata.version(package)
    if not f"{version}.".startswith(f"{tried}."):
        log.warning("%s %s was not tried with Holdfast's adapter, which was made for %s.*", package, version, tried)
