"""The scripts that slurm.conf names: all but TaskProlog's call Python by absolute paths.

#!/bin/bash
/opt/holdfast/bin/python -ISc '... from slurm.hooks.__main__ import main ...' /opt/holdfast/lib/... prolog
[[ $? != 100 ]] || exit 1
exit 0

Python starts without its site module, which takes less than half the time, and exits without cleanup, because jobs wait
for hooks. Slurm drains a node for any exit code but 0. So the script exits with 1 only for UNFIT, a code with which
Python never ends by itself: if the installation is missing or half replaced, the script exits with 0. Slurm kills the
script's whole process group at its limit, so Python ends with the shell.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from slurm.hooks.hook import UNFIT

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
export PATH={path}{slurm_conf}
{python} -ISc {start} {arguments}
[[ $? != {unfit} ]] || exit 1
exit 0  # also if Python cannot start
"""

_TASK_SCRIPT = """\
#!/bin/bash
# {parameter} of slurm.conf, written by `holdfast node provision --only hooks`: changes are lost.
told={root}/run/holdfast/tasks/$SLURM_JOB_ID
[[ ! -r $told ]] || echo "$(<"$told")"
"""

_START = """
import gc, os, sys
gc.disable()
sys.path.append(sys.argv[1])
try:
    from slurm.hooks.__main__ import main
    code = main(sys.argv[2:])
except BaseException as error:
    os.write(2, f"holdfast: nothing was done: {error!r}\\n".encode())
    code = 0
os._exit(code)
"""


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
    places = [*(place for place in own if place not in _SYSTEM_PATH), *_SYSTEM_PATH]  # the same without Slurm
    return {
        f"{name}.sh": (_TASK_SCRIPT if name == "task_prolog" else _SCRIPT).format(
            parameter=parameter,
            root=root.replace("%n", "$SLURMD_NODENAME"),
            path=shlex.quote(":".join(places)),
            slurm_conf=f"\nexport SLURM_CONF={shlex.quote(str(slurm_conf))}" if slurm_conf else "",
            python=shlex.quote(interpreter),
            unfit=UNFIT,
            start=shlex.quote(_START),
            arguments=shlex.join([str(Path(__file__).resolve().parents[2]), name, *([root] if root else [])]),
        )
        for parameter, name in HOOKS.items()
    }
