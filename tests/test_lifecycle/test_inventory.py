"""What is installed is read from the real places; what is not there is "" and never an error."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lifecycle.inventory import installed
from slurm.command import CommandError, Result, run

# What `fi_info --version` of EFA's libfabric prints.
_FI_INFO = "fi_info: 2.1.0amzn3.0\nlibfabric: 2.1.0amzn3.0\nlibfabric api: 2.1\n"


def _answering(answers: dict[str, str]) -> Any:
    def runner(argv: Sequence[str], **_: Any) -> Result:
        name = Path(argv[0]).name
        result = Result(argv=tuple(argv), returncode=0, stdout=answers.get(name, ""), stderr="", seconds=0.0)
        if name not in answers:
            raise CommandError(result, "could not be started")
        return result

    return runner


def test_a_node_with_everything(tmp_path: Path) -> None:
    library = tmp_path / "opt/amazon/ofi-nccl/lib/x86_64-linux-gnu/libnccl-net.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"\x7fELF\0Initializing aws-ofi-nccl 1.15.0\0")
    (tmp_path / "opt/amazon/efa_installed_packages").write_text("# EFA installer version: 1.42.0\n")
    nccl = tmp_path / "libnccl.so.2.21.5"
    nccl.touch()
    (tmp_path / "libnccl.so.2").symlink_to(nccl)
    answers = {
        "python3": '["2.9.1+cu128", "2.27.5"]\n',
        "fi_info": _FI_INFO,
        "ldconfig": f"1 libs found\n\tlibnccl.so.2 (libc6,x86-64) => {tmp_path}/libnccl.so.2\n",
    }
    found = installed(_answering(answers), "python3", tmp_path)
    assert (found.torch, found.torch_nccl, found.system_nccl) == ("2.9.1+cu128", "2.27.5", "2.21.5")
    assert (found.plugin, found.libfabric, found.efa) == ("1.15.0", "2.1.0amzn3.0", "1.42.0")


def test_a_bare_node_has_nothing_and_says_so(tmp_path: Path) -> None:
    assert set(vars(installed(_answering({}), "python3", tmp_path)).values()) == {""}


def test_this_machines_torch_answers() -> None:
    import importlib.metadata

    assert (
        installed(run, sys.executable).torch.partition("+")[0] == importlib.metadata.version("torch").partition("+")[0]
    )
