"""The recipes of training images: the text, and that nothing runs in them that was not verified."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from lifecycle.errors import NodeUsageError
from lifecycle.image import Image
from lifecycle.versions import VersionError, pin, table

_RECORDED = Path(__file__).parent / "recorded"


def _image(folder: Path, torch: str, **wanted: str) -> Image:
    wheel = folder / "holdfast_hpc-0.2.0-py3-none-any.whl"
    wheel.write_bytes(b"a wheel")
    return Image.of(torch, wheel, **wanted)


def _recipe(kind: str, folder: Path) -> str:
    image = _image(folder, "2.9.1")
    return image.docker() if kind == "docker" else image.apptainer()


@pytest.mark.parametrize(("kind", "name"), [("docker", "Dockerfile"), ("apptainer", "training.def")])
def test_the_recipe_is_as_recorded(kind: str, name: str, tmp_path: Path) -> None:
    assert _recipe(kind, tmp_path) == (_RECORDED / name).read_text()


@pytest.mark.parametrize("torch", list(table()["torch"]))
def test_every_torch_of_the_table_gives_both_recipes_with_its_versions(torch: str, tmp_path: Path) -> None:
    image, pinned = _image(tmp_path, torch), pin(torch)
    for text in (image.docker(), image.apptainer()):
        assert f"torch=={torch} " in text and f"/cu{pinned.cuda.replace('.', '')}\n" in text.replace(" \\\n", "\n")
        verified = text.index("sha256sum -c")
        assert pinned.efa_sha256 in text and verified < text.index("tar -xzf") < text.index("efa_installer.sh -y")
        assert "--skip-kmod" in text, "an image has no kernel"
        wheel = f"{hashlib.sha256(b'a wheel').hexdigest()}  /tmp/holdfast_hpc-0.2.0-py3-none-any.whl"
        assert text.index(f"echo '{wheel}' | sha256sum -c -") < text.index(" /tmp/holdfast_hpc-0.2.0-py3-none-any.whl")


@pytest.mark.parametrize("name", ["holdfast-0.5.1-py3-none-any.whl", "holdfast_hpc-0.2.0-py3-none-any.whl", "a;b.whl"])
def test_an_image_is_made_with_a_wheel_of_holdfast_or_not_at_all(name: str, tmp_path: Path) -> None:
    with pytest.raises(NodeUsageError, match="--wheel: "):
        Image.of("2.9.1", tmp_path / name)


def test_an_image_is_not_made_from_an_installer_without_a_checksum(tmp_path: Path) -> None:
    with pytest.raises(VersionError, match=r"1.51.0: versions.yaml has no checksum"):
        _image(tmp_path, "2.9.1", efa="1.51.0")


@pytest.mark.parametrize("kind", ["docker", "apptainer"])
def test_the_shell_in_the_recipe_is_clean(kind: str, tmp_path: Path) -> None:
    """shellcheck where it is installed, and bash's own look everywhere."""
    text = _recipe(kind, tmp_path)
    if kind == "docker":
        runs = [part.split("\n\n")[0] for part in text.split("\nRUN ")[1:]]
        script = "\n".join(runs)
    else:
        script = text.split("%post -c /bin/bash\n")[1].split("%environment")[0]
    script = f"#!/bin/bash\n{script}\n"
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    if shutil.which("shellcheck"):
        done = subprocess.run(["shellcheck", "-"], input=script, text=True, capture_output=True, check=False)
        assert done.returncode == 0, done.stdout
