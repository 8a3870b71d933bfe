"""After a job's end AWS's library starts no program that the job's user names in their AWS configuration."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ASK = "import sys; from ckpt.epilog import __main__ as end\nif sys.argv[1] == 'after': end._start_no_program()\n"
ASK += "import botocore.session; print(botocore.session.Session().get_credentials())"


@pytest.mark.parametrize(("when", "runs"), [("before", True), ("after", False)])
def test_a_credential_process_is_not_started(tmp_path: Path, when: str, runs: bool) -> None:
    config = tmp_path / "config"
    config.write_text(f"[default]\ncredential_process = /usr/bin/touch {tmp_path / 'ran'}\n")
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "AWS_CONFIG_FILE": str(config)}
    env["AWS_EC2_METADATA_DISABLED"] = "true"
    subprocess.run([sys.executable, "-c", ASK, when], env=env, capture_output=True, check=False)
    assert (tmp_path / "ran").exists() is runs
