"""Hooks on a real Slurm, as their tests look at them."""

from __future__ import annotations

import os

from slurm.client import Slurm
from slurm.records import Node
from slurm.testbed import TestCluster


def state(cluster: TestCluster, name: str) -> Node:
    return next(node for node in Slurm(env=os.environ | cluster.env).nodes() if node.name == name)
