"""The wheel: whole, the same from the tree and from the sdist, and enough to run a job away from the tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("holdfast", "slurm", "lifecycle", "ckpt", "launcher")
NOT_OF_THE_PACKAGES = "holdfast_hpc-"  # what the wheel has beside them


def run(*argv: str | Path, cwd: Path, **environment: str) -> str:
    """What a program prints, which knows nothing of this checkout."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PIP_", "HOLDFAST"))}
    done = subprocess.run(
        argv, cwd=cwd, env=env | environment, capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, f"{argv}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is in the repository: a build leaves folders behind, and takes up what it finds in them."""
    folder = tmp_path_factory.mktemp("tree")
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in run(*listing, cwd=ROOT).splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def wheel(tree: Path) -> Path:
    """As `make release` builds it: the sdist, and the wheel from that."""
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist", cwd=tree)
    (found,) = (tree / "dist").glob("*.whl")
    return found


def content(wheel: Path) -> dict[str, int]:
    with zipfile.ZipFile(wheel) as file:
        return {entry.filename: entry.CRC for entry in file.infolist()}


def test_the_wheel_has_every_file_of_the_packages_and_is_the_same_from_the_sdist(tree: Path, wheel: Path) -> None:
    files = [path.relative_to(tree) for package in PACKAGES for path in (tree / package).rglob("*") if path.is_file()]
    names = {name for name in content(wheel) if not name.startswith(NOT_OF_THE_PACKAGES)}
    assert names == {str(path) for path in files if "__pycache__" not in path.parts}
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", "direct", cwd=tree)
    assert content(tree / "direct" / wheel.name) == content(wheel)
    assert "PASSED" in run(sys.executable, "-m", "twine", "check", "--strict", *(tree / "dist").iterdir(), cwd=tree)


def test_an_installed_wheel_runs_a_job_away_from_the_tree(wheel: Path, tmp_path: Path) -> None:
    """In a new environment, which has nothing but the wheel; the other packages are lent from ours."""
    home = tmp_path / "venv"
    venv.create(home, with_pip=False)
    python, holdfast = home / "bin/python", home / "bin/holdfast"
    install = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python), "install", "-q")
    run(*install, "--no-deps", "--no-index", wheel, cwd=tmp_path)
    own = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    (own / "lent.pth").write_text(
        sysconfig.get_path("purelib") + "\n"
    )  # .pth files there, as of this tree, are not read
    modules = f"import {', '.join(PACKAGES)}; print({', '.join(f'{name}.__file__' for name in PACKAGES)})"
    assert all(Path(file).is_relative_to(own) for file in run(python, "-c", modules, cwd=tmp_path).split())

    assert run(holdfast, "--version", cwd=tmp_path).split()[-1] == wheel.name.split("-")[1]
    assert run(holdfast, "node", "on-create", cwd=tmp_path) == (ROOT / "lifecycle/on_create.sh").read_text()
    with pytest.raises(AssertionError, match=r"expected a directory that can be written"):
        run(holdfast, "ckpt", "bench", "/no/such/directory", cwd=tmp_path)  # the measurements themselves are there
    job = tmp_path / "job"
    run(holdfast, "init", job, cwd=tmp_path)
    assert "$schema=job.schema.json" in (job / "job.yaml").read_text() and (job / "job.schema.json").exists()
    run(holdfast, "init", job, cwd=tmp_path)  # the same again does no harm
    assert {path.name for path in (job / "sbatch_templates").iterdir()} == {
        path.name for path in (ROOT / "sbatch_templates").iterdir()
    }
    text = (job / "job.yaml").read_text()
    (job / "job.yaml").write_text(text.replace("nodes: 3", "nodes: 1").replace("spares: 1", "spares: 0"))
    path = f"{home / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    said = run(holdfast, "run", "job.yaml", "--", "--steps", "2", cwd=job, PATH=path, XDG_STATE_HOME=str(tmp_path))
    assert "done" in said, said
    with pytest.raises(AssertionError, match=r"job.yaml is there already; choose another directory"):
        run(holdfast, "init", ".", cwd=job)
