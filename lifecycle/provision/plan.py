"""The steps in their order, and which of them a request means."""

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
from lifecycle.provision.steps.users import Users

# What a step needs comes before it: packages before all, the node's disk before what caches on it, slurmd last: from
# then on jobs may come.
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
    Mountpoint(),
    Containers(),
    Chrony(),
    Hooks(),
    Slurmd(),
)


def choose(only: Iterable[str] = (), skip: Iterable[str] = (), steps: Sequence[Step] = STEPS) -> tuple[Step, ...]:
    """The steps that a request means, in the plan's order.

    Raises:
        UsageError: it names a step that there is not; the nearest one is named.
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
