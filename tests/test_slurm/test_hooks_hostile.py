"""Prolog and epilog as root, given whatever could stand in their environment and files: no crash, no path of others."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hooks_kit import JOB
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slurm.client import Slurm
from slurm.command import CommandError, Result
from slurm.hooks.epilog import epilog
from slurm.hooks.hook import FIT, UNFIT, run_hook
from slurm.hooks.places import Places
from slurm.hooks.prolog import prolog
from slurm.testbed.plan import account

pytestmark = pytest.mark.slurm  # they become other users: they need root

USER = account("nobody")
_NAMES = ("SLURM_JOB_ID", "SLURM_JOB_UID", "SLURM_JOB_GID", "SLURM_CLUSTER_NAME", "SLURMD_NODENAME", "SLURM_JOB_USER")
BODIES: dict[str, Any] = {"prolog": prolog, "epilog": epilog}
GOOD = dict(zip(_NAMES, (str(JOB), str(USER.pw_uid), str(USER.pw_gid), "c", "n1", USER.pw_name), strict=True))

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
hostile = st.sampled_from(
    [
        "",
        "0",
        "-1",
        "4294967295",
        "99999999999",
        "\u0667\u0667",
        "7\n",
        "../..",
        "/etc",
        "a/b",
        "$(id)",
        "..",
        "%s%n",
        "x" * 300,
    ]
)
environments = st.dictionaries(st.sampled_from(_NAMES), hostile | texts, max_size=4).map(lambda wrong: GOOD | wrong)
words = st.sampled_from(["version", "status", "time_s", "boot_id", "checks", "node", "level", "name"])
scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | texts | st.sampled_from(["fit", "critical", "unfit"])
)
data = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=4))
files = st.binary(max_size=80) | data.map(lambda value: json.dumps(value).encode())


def unreachable(argv: Sequence[str], **_: object) -> Result:
    result = Result(argv=tuple(argv), returncode=1, stdout="", stderr="Unable to contact slurm controller", seconds=0)
    raise CommandError(result, "exit code 1")


def levels_of(folder: Path) -> list[Path]:
    return sorted(path.relative_to(folder) for path in folder.rglob("*"))


@settings(max_examples=60, deadline=None)
@given(env=environments, verdict=files, settings_text=files)
@example(env=GOOD, verdict=b"{}", settings_text=b"")
@example(env=GOOD, verdict=b"[" * 100_000, settings_text=b"- " * 10_000)
def test_no_input_crashes_a_hook_or_leads_it_elsewhere(
    env: dict[str, str], verdict: bytes, settings_text: bytes
) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        memory = folder / "memory"
        memory.mkdir()
        memory.chmod(0o1777)
        places = Places(root=folder / "root", memory=memory)
        named = (
            (places.verdict, verdict),
            (places.settings_file, settings_text),
            (places.compiled_settings, settings_text),
        )
        for file, content in named:
            path = Path(file)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        for hook, called in BODIES.items():
            body = partial(called, slurm=Slurm(run=unreachable))
            assert run_hook(hook, body, places=places, env=env, limit_s=20.0) in (FIT, UNFIT)
            log = Path(places.log).read_text(errors="replace")
            assert "the hook itself failed" not in log, log
        for path in levels_of(memory):
            assert path.parts[0].startswith("holdfast-") and path.parts[0].removeprefix("holdfast-").isdecimal()
            assert len(path.parts) == 1 or path.parts[1].startswith("slurm-")
        assert {path.parts[0] for path in levels_of(folder)} == {"memory", "root"}
