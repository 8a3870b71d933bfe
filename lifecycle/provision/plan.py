"""All steps in their order; selects the steps of a request."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from lifecycle.errors import NodeUsageError
from lifecycle.provision.step import Step
from lifecycle.provision.steps.chrony import Chrony
from lifecycle.provision.steps.containers import Containers
from lifecycle.provision.steps.efa import Efa
from lifecycle.provision.steps.gpu import GdrCopy, Nccl, NcclTests
from lifecycle.provision.steps.hooks import Hooks
from lifecycle.provision.steps.limits import HugePages, Limits
from lifecycle.provision.steps.logind import Logind
from lifecycle.provision.steps.lustre import Lustre
from lifecycle.provision.steps.mountpoint import Mountpoint
from lifecycle.provision.steps.nvme import Nvme
from lifecycle.provision.steps.ofi_nccl import OfiNccl
from lifecycle.provision.steps.packages import Packages
from lifecycle.provision.steps.shm import Shm
from lifecycle.provision.steps.slurmd import Slurmd
from lifecycle.provision.steps.users import Homes, Users

# A step comes after the steps that it depends on: packages first, the local disk before the caches on it, the
# shared file system before the homes on it. slurmd is last, because jobs can start once it runs.
STEPS: tuple[Step, ...] = (
    Packages(),
    Users(),
    Limits(),
    HugePages(),
    Shm(),
    Logind(),
    Nvme(),
    Efa(),
    OfiNccl(),
    Nccl(),
    NcclTests(),
    GdrCopy(),
    Lustre(),
    Homes(),
    Mountpoint(),
    Containers(),
    Chrony(),
    Hooks(),
    Slurmd(),
)


def choose(only: Iterable[str] = (), skip: Iterable[str] = (), steps: Sequence[Step] = STEPS) -> tuple[Step, ...]:
    """Select the steps of a request, in the plan's order.

    Args:
        only: names of the steps to run; empty: all.
        skip: names of the steps to leave out.
        steps: all steps.

    Raises:
        UsageError: a name is not the name of a step. The message suggests the nearest name.
    """
    only, skip = tuple(only), tuple(skip)
    names = [step.name for step in steps]
    for option, given in (("--only", only), ("--skip", skip)):
        for name in given:
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1)
                hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(names)}"
                raise NodeUsageError(f"{option}: got {name!r}; {hint}")
    return tuple(step for step in steps if (not only or step.name in only) and step.name not in skip)
