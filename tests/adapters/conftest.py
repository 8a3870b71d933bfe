"""The adapters' tests use the kit of the flow tests, and frameworks that are not in the development environment."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "flows"))

FRAMEWORKS = "HOLDFAST_FRAMEWORKS"  # the folder into which `make test-frameworks` installs frameworks.txt


@pytest.fixture
def frameworks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lets processes of the test import what HOLDFAST_FRAMEWORKS has. Skips the test if a package is not there.

    The folder is not for this process: hydra needs another antlr4 than moto.
    """

    def find(*packages: str) -> None:
        folder = os.environ.get(FRAMEWORKS, "")
        for package in packages:
            if not (folder and (Path(folder) / package).is_dir()) and importlib.util.find_spec(package) is None:
                pytest.skip(f"{package} is not installed: `make test-frameworks` has it")
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH")))))

    return find
