"""The adapters' tests use kits of other tests, and frameworks that are not in the development environment."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / kits) for kits in ("flows", "test_ckpt")]

FRAMEWORKS = Path(sys.prefix, "frameworks")  # into which `make frameworks` installs frameworks.txt


@pytest.fixture
def frameworks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lets processes of the test import what `make frameworks` has installed. Skips the test if a package is missing.

    The folder is not for this process: hydra needs another antlr4 than moto.
    """

    def find(*packages: str) -> None:
        for package in packages:
            if not (FRAMEWORKS / package).is_dir() and importlib.util.find_spec(package) is None:
                pytest.skip(f"{package} is not installed: `make frameworks` does it")
        path = (str(FRAMEWORKS), os.environ.get("PYTHONPATH"))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))

    return find
