"""The recipes of training images: the text, and that nothing runs in them that was not verified."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from lifecycle.image import Image
from lifecycle.versions import VersionError, pin, table

_RECORDED = Path(__file__).parent / "recorded"


def _recipe(kind: str) -> str:
    image = Image.of("2.9.1")
    return image.docker() if kind == "docker" else image.apptainer()


@pytest.mark.parametrize(("kind", "name"), [("docker", "Dockerfile"), ("apptainer", "training.def")])
def test_the_recipe_is_as_recorded(kind: str, name: str) -> None:
    assert _recipe(kind) == (_RECORDED / name).read_text()


@pytest.mark.parametrize("torch", list(table()["torch"]))
def test_every_torch_of_the_table_gives_both_recipes_with_its_versions(torch: str) -> None:
    image, pinned = Image.of(torch), pin(torch)
    for text in (image.docker(), image.apptainer()):
        assert f"torch=={torch} " in text and f"/cu{pinned.cuda.replace('.', '')}\n" in text.replace(" \\\n", "\n")
        verified = text.index("sha256sum -c")
        assert pinned.efa_sha256 in text and verified < text.index("tar -xzf") < text.index("efa_installer.sh -y")
        assert "--skip-kmod" in text, "an image has no kernel"


def test_an_image_is_not_made_from_an_installer_without_a_checksum() -> None:
    with pytest.raises(VersionError, match=r"1.51.0: versions.yaml has no checksum"):
        Image.of("2.9.1", efa="1.51.0")


@pytest.mark.parametrize("kind", ["docker", "apptainer"])
def test_the_shell_in_the_recipe_is_clean(kind: str) -> None:
    """shellcheck where it is installed, and bash's own look everywhere."""
    text = _recipe(kind)
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
