"""The states of the random number generators of this process: Python's, NumPy's, torch's, and the current GPU's."""

from __future__ import annotations

import ctypes
import random
from typing import Any, NamedTuple

import numpy as np
import torch

_WORDS_BYTES = 624 * 4 + 4  # MT19937: its words and the number of those that are used


class RngMoment(NamedTuple):
    """One moment of all generators."""

    python: Any
    numpy: Any
    torch: Any
    cuda: Any  # of the current GPU; None if this process uses none

    numpy_words: bytes | None = None  # NumPy's state as it lies in memory

    @classmethod
    def now(cls, last: RngMoment | None = None) -> RngMoment:
        """This moment.

        Args:
            last: an earlier one. NumPy's state is taken from it, if nobody has drawn from NumPy since: reading it
                takes six times as long as the others.
        """
        words = _numpy_words()
        unused = last is not None and words is not None and words == last.numpy_words and not last.numpy["has_gauss"]
        state = last.numpy if last is not None and unused else np.random.get_state(legacy=False)
        cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
        return cls(random.getstate(), state, torch.get_rng_state(), cuda, words)

    def restore(self) -> None:
        """Moves all generators to this moment."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.torch)
        if self.cuda is not None and torch.cuda.is_available():
            torch.cuda.set_rng_state(self.cuda)

    def values(self) -> dict[str, Any]:
        """The same as values that a Checkpointer stores."""
        version, words, gauss = self.python
        python = {"version": version, "words": np.array(words, np.uint32), "gauss": gauss}
        return {"python": python, "numpy": self.numpy, "torch": self.torch, "cuda": self.cuda}

    @classmethod
    def of(cls, values: dict[str, Any]) -> RngMoment:
        """The moment of stored values."""
        python = values["python"]
        words = tuple(int(word) for word in python["words"])
        return cls((python["version"], words, python["gauss"]), values["numpy"], values["torch"], values["cuda"])


def _numpy_words() -> bytes | None:
    """NumPy's words and its place in them; None if it uses another generator than by default."""
    generator = np.random.get_bit_generator()  # type: ignore[attr-defined]
    if type(generator) is not np.random.MT19937:
        return None
    return ctypes.string_at(generator.ctypes.state_address, _WORDS_BYTES)


class RngState:
    """The random number generators of this process, as a part of a Checkpointer's state.

        state = {"model": model, "optimizer": optimizer, "data": loader, "rng": RngState()}

    Python's, NumPy's default one, torch's, and that of the current GPU. They belong to one rank: rank r loads those of
    saved rank r, or of r modulo the saved world size.
    """

    def state_dict(self) -> dict[str, Any]:
        return RngMoment.now().values()

    def load_state_dict(self, values: dict[str, Any]) -> None:
        RngMoment.of(values).restore()
