"""What it takes to start an agent."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ckpt.agent.process.fabric import mpi_settings
from ckpt.agent.process.launch import PYTHON, command, environment, unmoved


def test_an_agent_starts_without_libraries_that_it_may_never_need() -> None:
    look = "import sys, ckpt.agent.__main__; print({'boto3', 'numpy', 'torch', 'yaml'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_the_warning_of_a_time_limit_does_not_end_a_program_that_is_still_importing() -> None:
    tell = "from signal import *; print([getsignal(number) is SIG_IGN for number in (SIGUSR1, SIGUSR2, SIGTERM)])"
    done = subprocess.run(unmoved([sys.executable, "-c", tell]), capture_output=True, text=True, check=True)
    assert done.stdout == "[True, True, False]\n"
    assert command()[:2] == unmoved([])[:2] and command()[3:] == unmoved([*PYTHON, "-m", "ckpt.agent"])[3:]


@pytest.mark.parametrize("folder", [".", "missing"])
def test_an_agent_is_found_by_a_file_in_its_memory_directory_and_runs_without_it(tmp_path: Path, folder: str) -> None:
    register = command()[2]
    env = os.environ | {"HOLDFAST_RAM_DIR": str(tmp_path / folder)}
    done = subprocess.run(
        ["sh", "-c", register, "sh", "sh", "-c", "echo $$"], env=env, capture_output=True, text=True, check=False
    )
    found = [file.name for file in tmp_path.iterdir()]
    assert found == ([f"agent-{done.stdout.strip()}.pid"] if folder == "." else []) and not done.stderr
    assert done.returncode == 0


WITHOUT_OFI = {"OMPI_MCA_btl": "^ofi", "OMPI_MCA_mtl": "^ofi"}
YIELDING = {"OMPI_MCA_mpi_yield_when_idle": "1"}


def node_with(root: Path, *cards: str) -> Path:
    for card in cards:
        (root / "sys/class" / card).mkdir(parents=True)
    return root


@pytest.mark.parametrize("found", [(), ("infiniband", "cxi")])
def test_without_a_fast_fabric_mpi_is_spared_the_search_for_one(tmp_path: Path, found: tuple[str, ...]) -> None:
    assert mpi_settings({}, node_with(tmp_path, *found)) == YIELDING | WITHOUT_OFI


@pytest.mark.parametrize("card", ["infiniband/rdmap86s0", "infiniband/mlx5_0", "cxi/cxi0"])
def test_a_fast_fabric_is_left_to_mpi(tmp_path: Path, card: str) -> None:
    assert mpi_settings({}, node_with(tmp_path, card)) == YIELDING


@pytest.mark.parametrize("name", ["pml", "btl", "mtl"])
def test_where_the_site_has_chosen_a_network_its_choice_stands(tmp_path: Path, name: str) -> None:
    site = {f"OMPI_MCA_{name}": "x", "OMPI_MCA_mpi_yield_when_idle": "0"}
    assert mpi_settings(site, tmp_path) == {}


def test_open_mpi_knows_the_settings(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    look = (
        "import os; from ckpt.agent.process.fabric import mpi_settings; from pathlib import Path; "
        f"os.environ.update(mpi_settings(os.environ, Path({str(tmp_path)!r}))); from mpi4py import MPI"
    )
    chosen = {name: value for name, value in os.environ.items() if not name.startswith("OMPI_MCA_")}
    verbose = {"OMPI_MCA_btl_base_verbose": "100", "OMPI_MCA_mtl_base_verbose": "100"}
    env = chosen | environment() | verbose
    done = subprocess.run([sys.executable, "-c", look], env=env, capture_output=True, text=True, check=True, timeout=60)
    assert "component tcp" in done.stderr and "component ofi" not in done.stderr


def test_open_mpi_declares_no_slow_agent_dead(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    info = str(Path(sys.executable).with_name("ompi_info"))
    env = {**os.environ, "OMPI_MCA_mpi_ft_detector": "1", **environment(loopback=True)}
    shown = subprocess.run([info, "--all", "--parsable"], env=env, capture_output=True, text=True, check=True).stdout
    values = dict(line.split(":value:") for line in shown.splitlines() if ":value:" in line and ":enum" not in line)
    assert values["mca:mpi:ft:param:mpi_ft_enable"] == "true"
    assert values["mca:mpi:ft:param:mpi_ft_detector"] == "false"
    assert "put" not in values["mca:btl:tcp:param:btl_tcp_flags"]
