"""Root runs nothing that another user can change: every file, every directory and every link is looked at."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hooks_kit import OTHER, as_root

import slurm
from slurm.hooks.trust import check_trusted, installation
from slurm.trust import TrustError

pytestmark = as_root


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """An installation of root's: `opt/package/module.py`, also by links of root's."""
    folder = tmp_path / "opt/package"
    folder.mkdir(parents=True)
    (folder / "module.py").write_text("")
    (folder / "nested").mkdir()
    (folder / "nested/relative.py").symlink_to("../module.py")
    (tmp_path / "home").mkdir()
    os.chown(tmp_path / "home", OTHER, OTHER)
    return folder


def test_an_installation_of_root_is_trusted(package: Path) -> None:
    check_trusted(package, package / "module.py", package / "nested/relative.py")


def test_a_file_or_directory_that_a_neighbour_may_change_is_named(package: Path) -> None:
    module, nested, home = package / "module.py", package / "nested", package.parents[1] / "home"
    planted = home / "planted.py"

    changes = {
        "a module that all may write": (lambda: module.chmod(0o666), module),
        "with a sticky bit, which protects no file": (lambda: module.chmod(0o1666), module),
        "a module of a group": (lambda: module.chmod(0o664), module),
        "a module of the neighbour": (lambda: os.chown(module, OTHER, OTHER), module),
        "a directory that all may write": (lambda: nested.chmod(0o777), nested),
        "a link to a file of theirs": (lambda: (nested / "link.py").symlink_to(planted), home),
        "a link of theirs in a sticky directory": (lambda: link_of_neighbour(nested), nested / "link.py"),
    }
    planted.write_text("")
    for what, (change, named) in changes.items():
        change()
        with pytest.raises(TrustError, match="others could change") as refused:
            check_trusted(package)
        assert str(refused.value).startswith(f"{named}: "), what
        (nested / "link.py").unlink(missing_ok=True)
        nested.chmod(0o755)
        os.chown(module, 0, 0)
        module.chmod(0o644)
        check_trusted(package)


def link_of_neighbour(directory: Path) -> None:
    directory.chmod(0o1777)
    (directory / "link.py").symlink_to(directory.parent / "module.py")
    os.lchown(directory / "link.py", OTHER, OTHER)


def test_a_way_through_a_users_home_is_refused_though_its_two_ends_are_roots(package: Path) -> None:
    home, way = package.parents[1] / "home", package.parents[1] / "way"
    (home / "link").symlink_to(package)
    os.lchown(home / "link", 0, 0)
    way.symlink_to(home / "link")
    with pytest.raises(TrustError, match="others could change") as refused:
        check_trusted(way / "module.py")
    assert str(refused.value).startswith(f"{home}: ")


@pytest.mark.parametrize("missing", ["none.py", "loop"])
def test_what_is_not_there_is_not_trusted(package: Path, missing: str) -> None:
    (package / "loop").symlink_to("loop")
    with pytest.raises(TrustError):
        check_trusted(package / missing)


def test_everything_that_hooks_import_is_looked_at() -> None:
    looked_at = [path.resolve() for path in installation(Path(sys.executable), Path(slurm.__file__).parent)]
    imports = "import launcher.__main__, slurm.hooks.prolog, yaml, sys; print('\\n'.join(" \
        "m.__file__ for m in sys.modules.values() if getattr(m, '__file__', None)))"  # fmt: skip
    files = subprocess.run([sys.executable, "-I", "-c", imports], capture_output=True, text=True, check=True).stdout
    assert len(files.split()) > 100
    for file in files.split():
        ways = (Path(file), Path(file).resolve())
        assert any(way.is_relative_to(path) for way in ways for path in looked_at), file
