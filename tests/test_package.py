"""What users install: its name, and what is in it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast

ROOT = Path(__file__).resolve().parent.parent

# `holdfast` as pip reads it: not a part of another word, a path, a URL, or holdfast-hpc.
_OTHER = r"(?<![\w./-])holdfast(?![\w./:@-])"
_INSTALLS_OTHER = re.compile(rf"\binstall\b[^\n|;&#]*{_OTHER}|{_OTHER}\[|:-holdfast\b|{_OTHER}\s*[=~><]=")


def test_nothing_installs_the_other_package_named_holdfast() -> None:
    """PyPI's `holdfast` is another project's; ours is `holdfast-hpc`."""
    for bad in ("pip install holdfast", "pip install -q 'holdfast[s3]'", "${SOURCE:-holdfast}", "holdfast==0.1.0"):
        assert _INSTALLS_OTHER.search(bad), bad
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = [
        f"{name}: {match[0]}"
        for name in filter(None, listed.split("\0"))
        if name not in ("CHANGELOG.md", str(Path(__file__).relative_to(ROOT))) and (ROOT / name).is_file()
        for match in _INSTALLS_OTHER.finditer((ROOT / name).read_text(errors="replace"))
    ]
    assert not found


def test_users_import_every_name_from_holdfast_which_imports_nothing_before() -> None:
    check = (
        "import sys, holdfast; print(sorted({name.partition('.')[0] for name in sys.modules} & {'ckpt', 'launcher'}))"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert [name for name in holdfast.__all__ if getattr(holdfast, name).__name__ != name] == []
    with pytest.raises(AttributeError, match="'Chekpointer'"):
        holdfast.Chekpointer  # noqa: B018


def test_examples_import_nothing_but_what_users_import() -> None:
    rooms = re.compile(r"^ *(?:from|import) (?:ckpt|launcher|lifecycle|slurm)\b", re.MULTILINE)
    assert [path for path in (ROOT / "examples").rglob("*.py") if rooms.search(path.read_text())] == []


def test_examples_readme_and_templates_import_users_names_from_holdfast() -> None:
    rooms = re.compile(rf"^ *from (?:ckpt|launcher) import .*\b(?:{'|'.join(holdfast.__all__)})\b", re.MULTILINE)
    texts = [
        ROOT / "README.md",
        *(p for d in ("docs", "examples", "sbatch_templates") for p in (ROOT / d).rglob("*.*")),
    ]
    assert [path for path in texts if path.is_file() and rooms.search(path.read_text(errors="replace"))] == []
