"""The states of the random number generators of this process: Python's, NumPy's, torch's, and the current GPU's."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import numpy as np
import torch


class RngState(NamedTuple):
    """One moment of all generators. Taking one copies 10 kB."""

    python: Any
    numpy: Any
    torch: Any
    cuda: Any  # of the current GPU; None if this process uses none

    @classmethod
    def now(cls) -> RngState:
        cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
        return cls(random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state(), cuda)

    def restore(self) -> None:
        """Moves all generators to this moment."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.torch)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda)

    def values(self) -> dict[str, Any]:
        """The same as values that a Checkpointer stores."""
        version, words, gauss = self.python
        python = {"version": version, "words": np.array(words, np.uint32), "gauss": gauss}
        return {"python": python, "numpy": self.numpy, "torch": self.torch, "cuda": self.cuda}

    @classmethod
    def of(cls, values: dict[str, Any]) -> RngState:
        """The moment of stored values."""
        python = values["python"]
        words = tuple(int(word) for word in python["words"])
        return cls((python["version"], words, python["gauss"]), values["numpy"], values["torch"], values["cuda"])


class Rng:
    """The generators of this process as a part of a Checkpointer's state: `state = {..., "rng": Rng()}`."""

    def state_dict(self) -> dict[str, Any]:
        return RngState.now().values()

    def load_state_dict(self, values: dict[str, Any]) -> None:
        RngState.of(values).restore()
