"""What pyproject.toml cannot say: the manual in the wheel, written from the command line's own help."""

from __future__ import annotations

import sys
from pathlib import Path

from setuptools import setup  # isort: split

from distutils.command.install_data import install_data  # setuptools brings it, on every Python


class InstallData(install_data):
    """Adds a page for each verb to share/man/man1."""

    def run(self) -> None:
        super().run()
        sys.path.insert(0, str(Path(__file__).parent))
        from launcher.cli.man import write_pages

        pages = write_pages(Path(self.install_dir, "share/man/man1"), self.distribution.get_version())
        self.outfiles += map(str, pages)


setup(cmdclass={"install_data": InstallData})
