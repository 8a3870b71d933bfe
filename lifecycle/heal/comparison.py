"""The check between nodes: with which neighbours a node is compared, by which script, and what speaks against it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from lifecycle.health.collective import CHECKED_NODE
from slurm.records import Job, Node
from slurm.topology import Topology

PAIRS_LOG = Path("/var/log/holdfast/heal-pairs.log")
"""What the check said, on the first node of its job."""

_NEIGHBOURS = 2
_IS_UNFIT = 9
# Exit code 1 alone may mean that the first node's Python or its files are at fault: that speaks against no node here.
_SCRIPT = """\
export {variable}={node}
said=$({check} 2>&1); code=$?
[ -z "$said" ] || {{
    mkdir -p {folder}
    printf '%s %s\\n' "$(date -u +%FT%TZ) job $SLURM_JOB_ID on $SLURM_JOB_NODELIST:" "$said" >>{log}
}}
case $code,$said in 1,*critical*) exit {unfit};; esac
exit $code"""


def neighbours(node: Node, nodes: Sequence[Node], topology: Topology) -> list[str]:
    """Idle nodes of the same kind, the nearest; two, so that of a slow pair the third tells whose fault it is.

    Args:
        node: the one that is to be compared.
        nodes: all of the cluster.
        topology: what is near.
    """
    alike = [
        other.name
        for other in nodes
        if other.is_idle  # so it is neither drained nor reserved: not being healed itself
        and other.name != node.name
        and (other.cpus, set(other.partitions)) == (node.cpus, set(node.partitions))
    ]
    return sorted(alike, key=lambda name: (topology.distance(node.name, name), name))[:_NEIGHBOURS]


def script(node: str, check: Sequence[str]) -> str:
    """Runs the check of these nodes for one of them; the exit code is for `is_unfit`."""
    return _SCRIPT.format(
        variable=CHECKED_NODE,
        node=node,
        check=shlex.join(check),
        folder=PAIRS_LOG.parent,
        log=PAIRS_LOG,
        unfit=_IS_UNFIT,
    )


def is_unfit(job: Job) -> bool:
    """Whether the job has found that it is the node's own fault; every other end of it says nothing."""
    return job.state == "FAILED" and job.exit_code == _IS_UNFIT
