"""Which torch `make` installs: the CUDA build, the CPU build and the site's, with a real pip and tiny wheels."""

import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def wheel(folder: Path, name: str, version: str, requires: str = "") -> None:
    """Write a wheel of one module, which only knows its version."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + (
        f"Requires-Dist: {requires}\n" if requires else ""
    )
    with zipfile.ZipFile(folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl", "w") as file:
        file.writestr(f"{name.replace('-', '_')}.py", f"__version__ = '{version}'\n")
        file.writestr(f"{info}/METADATA", metadata)
        file.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{info}/RECORD", "")


@pytest.fixture(scope="module")
def fresh_venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A venv as `make` makes it, with pip alone: made once, for that takes seconds."""
    folder = tmp_path_factory.mktemp("fresh")
    shutil.copy(ROOT / "Makefile", folder)
    subprocess.run(["make", "-C", str(folder), ".venv/.created"], capture_output=True, timeout=120, check=True)
    return folder / ".venv"


@pytest.fixture
def checkout(tmp_path: Path, fresh_venv: Path) -> Path:
    """A folder with the Makefile, a pin of torch 2.1, and an index where 2.1 needs CUDA packages and 2.2 does not."""
    index = tmp_path / "index"
    index.mkdir()
    wheel(index, "torch", "2.1", requires="nvidia-cudart")
    wheel(index, "torch", "2.2")
    wheel(index, "nvidia-cudart", "1.0")
    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copytree(fresh_venv, tmp_path / ".venv", symlinks=True)
    (tmp_path / "constraints.txt").write_text("torch==2.1\nnumpy==1.26\n")
    return tmp_path


def make(checkout: Path, *settings: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    flags = f"PIP_FLAGS=--no-index --find-links {checkout / 'index'}"
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS", "PIP_", "TORCH", "CUDA"))}
    argv = ["make", "-C", str(checkout), flags, *settings, ".venv/.torch"]
    return subprocess.run(argv, env=clean | environment, capture_output=True, text=True, timeout=120, check=False)


def installed_torch(checkout: Path, **environment: str) -> str:
    code = "import torch; print(torch.__version__)"
    argv = [checkout / ".venv/bin/python", "-c", code]
    return subprocess.run(
        argv, env=os.environ | environment, capture_output=True, text=True, check=False
    ).stdout.strip()


no_driver = pytest.mark.skipif(
    shutil.which("nvidia-smi") is not None, reason="the choice is for machines without an NVIDIA driver"
)


@no_driver
def test_a_cuda_build_is_installed_with_its_size_told_where_there_is_no_other(checkout: Path) -> None:
    done = make(checkout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no CPU build of torch==2.1 in pip's indexes: pip downloads the CUDA build" in done.stdout
    assert re.search(r"make: 0\.0 MB\. It runs on the CPU too", done.stdout)
    assert installed_torch(checkout) == "2.1"


@no_driver
def test_a_cpu_build_in_the_indexes_is_taken_in_place_of_the_cuda_build(checkout: Path) -> None:
    wheel(checkout / "index", "torch", "2.1+cpu")
    wheel(checkout / "index", "torch", "2.1+cu126", requires="nvidia-cudart")  # pip itself takes this one
    done = make(checkout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert installed_torch(checkout) == "2.1+cpu" and "CUDA" not in done.stdout


@no_driver
def test_a_cuda_build_that_was_asked_for_is_installed_without_a_word(checkout: Path) -> None:
    wheel(checkout / "index", "torch", "2.1+cu126", requires="nvidia-cudart")
    done = make(checkout, "CUDA=1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert installed_torch(checkout) == "2.1+cu126" and "driver" not in done.stdout


def test_another_version_of_torch_replaces_the_pinned_one_in_the_constraints(checkout: Path) -> None:
    done = make(checkout, "TORCH=torch==2.2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert installed_torch(checkout) == "2.2"
    assert (checkout / ".venv/constraints.txt").read_text().split() == ["numpy==1.26", "torch==2.2"]


def test_the_sites_torch_is_used_and_never_replaced(checkout: Path) -> None:
    """Where another package's requirements conflict with those of the site's torch, pip would fetch a newer torch."""
    site = checkout / "site"
    site.mkdir()
    wheel(checkout / "index", "torch", "2.0", requires="sympy==1.13")
    with zipfile.ZipFile(next((checkout / "index").glob("torch-2.0-*"))) as file:
        file.extractall(site)
    done = make(checkout, "SITE_TORCH=1", PYTHONPATH=str(site))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "using the site torch 2.0" in done.stdout
    assert (checkout / ".venv/constraints.txt").read_text().split() == ["numpy==1.26", "torch==2.0"]
    assert not list((checkout / ".venv").glob("lib/python3*/site-packages/torch*"))
    wheel(checkout / "index", "sympy", "1.14")
    pip = [checkout / ".venv/bin/python", "-m", "pip", "install", "--no-index", "--find-links", checkout / "index"]
    constrained = [*pip, "-c", checkout / ".venv/constraints.txt", "torch>=2", "sympy>=1.14"]
    environment = os.environ | {"PYTHONPATH": str(site)}
    refused = subprocess.run(constrained, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert refused.returncode != 0 and "ResolutionImpossible" in refused.stderr
    assert installed_torch(checkout, PYTHONPATH=str(site)) == "2.0"
