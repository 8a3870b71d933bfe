"""What users install: its name, and what is in it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

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
