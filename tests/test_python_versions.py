"""The promised versions of Python and torch, as far as files show it. `make test-oldest` runs the oldest of them."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[1]
PROMISED = ("3.11", "3.12", "3.13", "3.14")


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def applying(lines: list[str], python: str) -> list[Requirement]:
    """The requirements whose marker holds for a version of Python on Linux."""
    machine = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux"}
    parsed = [Requirement(line) for line in lines]
    return [one for one in parsed if one.marker is None or one.marker.evaluate(machine)]


def pins(python: str) -> list[Requirement]:
    lines = [line.partition("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    return applying([line for line in lines if line], python)


@pytest.mark.parametrize("python", PROMISED)
def test_every_python_has_one_pin_of_each_direct_requirement_within_its_range(
    pyproject: dict[str, Any], python: str
) -> None:
    counted = Counter(pin.name.lower() for pin in pins(python))
    assert [name for name, times in counted.items() if times > 1] == []
    every = {
        Requirement(line).name.lower() for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    }
    assert every == set(counted), "pinned for some versions of Python only"
    project = pyproject["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for name, each in extras.items() if name != "bench" for line in each)]
    pinned = {pin.name.lower(): next(iter(pin.specifier)).version for pin in pins(python)}
    for wanted in applying(lines, python):
        if wanted.name != "holdfast-hpc":
            assert wanted.specifier.contains(pinned[wanted.name.lower()]), (
                f"{wanted} is not pinned, or outside its range"
            )


def test_the_promise_is_the_same_in_every_place(pyproject: dict[str, Any]) -> None:
    project = pyproject["project"]
    assert SpecifierSet(project["requires-python"]) == SpecifierSet(f">={PROMISED[0]}")
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert tuple(named) == PROMISED
    assert pyproject["tool"]["ruff"]["target-version"] == "py311"  # newer syntax is an error of `make lint`
    tried = re.findall(r"^\| (3\.\d+)\.\d+ \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert tuple(sorted(set(tried))) == PROMISED, "the README has what was tried with each"


def test_the_oldest_torch_is_what_test_oldest_runs(pyproject: dict[str, Any]) -> None:
    (torch,) = (one for one in map(Requirement, pyproject["project"]["dependencies"]) if one.name == "torch")
    floor = str(torch.specifier).removeprefix(">=")
    assert f"torch=={floor}.0" in (ROOT / "Makefile").read_text()


def test_the_oldest_python_is_the_same_in_the_makefile_and_for_nodes() -> None:
    oldest = tuple(map(int, PROMISED[0].split(".")))
    makefile, on_create = ((ROOT / path).read_text() for path in ("Makefile", "lifecycle/on_create.sh"))
    assert f"sys.version_info < {oldest}" in makefile and f"--python-version {PROMISED[0]} " in makefile
    assert f"python{PROMISED[0]} ~/.pyenv" in makefile and f"Python {PROMISED[0]} with torch" in makefile
    assert f"sys.version_info < {oldest}" in on_create and f"python{PROMISED[0]}-venv" in on_create
