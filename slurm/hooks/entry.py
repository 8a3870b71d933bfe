"""The scripts that slurm.conf names: one line of bash each, into Python by absolute paths, but for TaskProlog's.

#!/bin/bash
exec /opt/holdfast/bin/python -ISc 'import sys; sys.path.append("..."); ...' prolog

Python starts without its site module, in less than half the time, and ends without tidying up: jobs wait for hooks.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from slurm.errors import SlurmError

HOOKS: Mapping[str, str] = {
    "Prolog": "prolog",
    "Epilog": "epilog",
    "TaskProlog": "task_prolog",
    "HealthCheckProgram": "health",
    "RebootProgram": "reboot",
}
"""Parameter of slurm.conf -> name of the hook."""

DIRECTORY = Path("/etc/slurm/holdfast")

_SYSTEM_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")

_SCRIPT = """\
#!/bin/bash
# {parameter} of slurm.conf, written by `holdfast node provision --only hooks`: changes are lost.
set -euo pipefail
export PATH={path}{slurm_conf}
exec {python} -ISc {start} {arguments}
"""

_TASK_SCRIPT = """\
#!/bin/bash
# {parameter} of slurm.conf, written by `holdfast node provision --only hooks`: changes are lost.
told={root}/run/holdfast/tasks/$SLURM_JOB_ID
[[ ! -r $told ]] || echo "$(<"$told")"
"""

_START = (
    "import gc, posix, sys; gc.disable(); sys.path.append({ours!r}); "
    "from slurm.hooks.__main__ import main; posix._exit(main(sys.argv[1:]))"
)


class EntryError(SlurmError):
    """A hook would run as root what others can change."""


def scripts(*, python: Path | None = None, root: str = "", slurm_conf: Path | None = None) -> dict[str, str]:
    """The scripts: file name -> text. slurmd gives hooks no PATH: they get the system's and that of Slurm's commands.

    Args:
        python: the interpreter that has this project; ours by default.
        root: instead of "/" for the hooks' files; `%n` stands for the host's name.
        slurm_conf: the cluster's, where it is not where Slurm looks by itself.
    """
    interpreter = os.path.abspath(python or sys.executable)
    scontrol = shutil.which("scontrol")
    own = [str(Path(scontrol).parent)] if scontrol else []
    places = [*(place for place in own if place not in _SYSTEM_PATH), *_SYSTEM_PATH]  # the same before Slurm is there
    return {
        f"{name}.sh": (_TASK_SCRIPT if name == "task_prolog" else _SCRIPT).format(
            parameter=parameter,
            root=root.replace("%n", "$SLURMD_NODENAME"),
            path=shlex.quote(":".join(places)),
            slurm_conf=f"\nexport SLURM_CONF={shlex.quote(str(slurm_conf))}" if slurm_conf else "",
            python=shlex.quote(interpreter),
            start=shlex.quote(_START.format(ours=str(Path(__file__).resolve().parents[2]))),
            arguments=shlex.join([name, root] if root else [name]),
        )
        for parameter, name in HOOKS.items()
    }


def check_trusted(*paths: Path) -> None:
    """Root will run what lies there: only root may be able to change it, at every level.

    Raises:
        EntryError: others can.
    """
    for path in paths:
        absolute, real = Path(os.path.abspath(path)), path.resolve()
        for level in (real, *real.parents, *absolute.parents):
            facts = level.stat()
            if facts.st_uid != 0 or (facts.st_mode & 0o022 and not facts.st_mode & 0o1000):
                raise EntryError(
                    f"{level}: mode {facts.st_mode & 0o7777:o} of uid {facts.st_uid}: others could change what Slurm "
                    "runs as root; install holdfast where only root can write, for example in /opt/holdfast"
                )
