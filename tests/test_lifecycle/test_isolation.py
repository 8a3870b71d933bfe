"""What root runs imports nothing of the working directory, and installs nothing whose hash is not known."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from lifecycle.heal.settings import HealSettings
from lifecycle.health import collective
from lifecycle.health.check import CheckedNode
from slurm.command import run
from slurm.testbed.plan import account

ROOT = Path(__file__).parents[2]
ON_CREATE = ROOT / "lifecycle/on_create.sh"
LOCK = ROOT / "lifecycle/requirements.lock"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="root's programs, beside another user")


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A directory that anybody may write, in which another user left modules under the names of those that we use."""
    directory = tmp_path / "everybodys"
    directory.mkdir()
    plant = f"open({str(tmp_path / 'ran')!r}, 'a').write(__name__ + ' ')\n"
    names = ("venv", "ensurepip", "pip", "launcher", "lifecycle", "slurm", "json", "argparse", "typer", "setuptools")
    for name in names:
        (directory / f"{name}.py").write_text(plant)
        (directory / name).mkdir()
        for module in ("__init__.py", "__main__.py"):
            (directory / name / module).write_text(plant)
    stranger = account("nobody").pw_uid
    for path in (directory, *directory.rglob("*")):
        os.chown(path, stranger, stranger)
    directory.chmod(0o1777)
    return directory


def ran(planted: Path) -> str:
    """Which of the planted modules have run."""
    file = planted.parent / "ran"
    return file.read_text() if file.exists() else ""


def test_the_planted_modules_would_run_if_python_looked_there(planted: Path) -> None:
    run((sys.executable, "-m", "venv", "unused"), cwd=planted, check=False)
    assert "venv" in ran(planted)


def test_provisioning_runs_no_planted_module_and_installs_no_package_with_another_hash(planted: Path) -> None:
    """Packages of the lock file are offered with other content: pip stops at the first."""
    wheels = planted.parent / "wheels"
    wheels.mkdir()
    for name, version in re.findall(r"^([a-z0-9-]+)==(\S+)", LOCK.read_text(), re.MULTILINE):
        stem = f"{name.replace('-', '_')}-{version}"
        with zipfile.ZipFile(wheels / f"{stem}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{stem}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            wheel.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{stem}.dist-info/RECORD", "")
    env = {
        "PATH": os.environ["PATH"],
        "HOLDFAST_HOME": str(planted.parent / "home"),
        "SAGEMAKER_RESOURCE_CONFIG_PATH": str(planted.parent / "none"),
        "PYTHONPATH": str(planted),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
    }
    done = subprocess.run(["bash", ON_CREATE], env=env, cwd=planted, capture_output=True, text=True, check=False)
    assert ran(planted) == ""
    assert done.returncode != 0 and "DO NOT MATCH THE HASHES" in done.stderr, done.stderr
    assert not (planted.parent / "home/source").exists()


def test_a_source_that_nothing_can_be_compared_with_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "on_create.sh"  # alone, as ParallelCluster puts it
    script.write_text(ON_CREATE.read_text())
    env = {"PATH": os.environ["PATH"], "HOLDFAST_HOME": str(tmp_path / "home")}
    done = run(("bash", str(script), "--source", "s3://bucket/holdfast.whl"), env=env, check=False)
    assert done.returncode == 2 and "expected #sha256=... at its end" in done.stderr
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("mode", [0o1777, 0o755])
def test_the_parameters_of_another_user_beside_the_script_are_not_taken(tmp_path: Path, mode: int) -> None:
    script = tmp_path / "on_create.sh"
    script.write_text(ON_CREATE.read_text())
    (tmp_path / "provisioning_parameters.json").write_text('{"controller_group": "theirs"}')
    os.chown(tmp_path / "provisioning_parameters.json", account("nobody").pw_uid, -1)
    tmp_path.chmod(mode)
    env = {"PATH": os.environ["PATH"], "SAGEMAKER_RESOURCE_CONFIG_PATH": str(tmp_path / "none")}
    done = run(("bash", str(script)), env=env, check=False)
    assert "on_create.sh: source: got ''" in done.stderr and "parameters" not in done.stderr


def test_every_python_that_provisioning_calls_looks_only_at_its_own_modules() -> None:
    calls = re.findall(r'(?:^|\s|\(")(?:python3|"\$(?:home/bin/)?(?:python|each)") (\S+)', ON_CREATE.read_text())
    assert len(calls) >= 9 and set(calls) == {"-I"}


def test_the_packages_that_fetch_from_a_bucket_are_those_of_the_lock_file() -> None:
    """The script alone has no lock file: it names the few that it needs before it has one."""
    _, _, fetch = ON_CREATE.read_text().partition("<<'REQUIREMENTS'\n")
    lines = fetch.partition("\nREQUIREMENTS")[0].splitlines()
    assert len(lines) >= 5
    locked = re.sub(r" \\\n +", " ", LOCK.read_text()).splitlines()
    hashes = {line.split()[0]: line.split()[1:] for line in locked}
    for line in lines:
        package, sha256 = line.split()
        assert sha256 in hashes[package], f"{package}: another than in {LOCK.name}; was `make lock` run?"


@pytest.mark.parametrize(
    "argv",
    [HealSettings().check, HealSettings().check_pairs, collective._program(CheckedNode(run=run, environment={}))],
    ids=["healing's check", "healing's check of pairs", "the all-reduce"],
)
def test_what_root_starts_on_a_node_runs_no_planted_module(planted: Path, argv: Sequence[str]) -> None:
    assert "usage" in run((*argv, "--help"), cwd=planted).stdout.lower()
    assert ran(planted) == ""
