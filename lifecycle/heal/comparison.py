"""The check between nodes: its neighbours, its script, and how its result is judged."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from holdfast.base.environment import Variable
from slurm.records import Job, Node
from slurm.topology import Topology

PAIRS_LOG = Path("/var/log/holdfast/heal-pairs.log")
"""Output of the check, on the first node of its job."""

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
    """The nearest idle nodes of the same kind, at most two: with three nodes, pairs show which node is slow.

    Args:
        node: the node to compare.
        nodes: all nodes of the cluster.
        topology: gives the distances.
    """
    alike = [
        other.name
        for other in nodes
        if other.is_idle  # this excludes drained and reserved nodes, and so those that are being healed
        and other.name != node.name
        and (other.cpus, set(other.partitions)) == (node.cpus, set(node.partitions))
    ]
    return sorted(alike, key=lambda name: (topology.distance(node.name, name), name))[:_NEIGHBOURS]


def script(node: str, check: Sequence[str]) -> str:
    """The script that runs the check between these nodes for one of them. `is_unfit` judges its exit code."""
    return _SCRIPT.format(
        variable=Variable.CHECKED_NODE,
        node=node,
        check=shlex.join(check),
        folder=PAIRS_LOG.parent,
        log=PAIRS_LOG,
        unfit=_IS_UNFIT,
    )


def is_unfit(job: Job) -> bool:
    """Whether the job found that the node itself is at fault. Any other result counts as no finding."""
    return job.state == "FAILED" and job.exit_code == _IS_UNFIT
