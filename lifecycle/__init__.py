"""Provisions nodes, checks their health, and heals nodes that were drained.

cli        `holdfast node`: the group of all verbs about nodes
health/    checks, one subject a module
heal/      reboots or replaces drained nodes, checks and returns them
cluster/   `holdfast cluster config`: what creates a cluster on AWS
provision/ the steps that provision a bare node; on_create.sh starts them
metrics    the results of checks and healing for Prometheus
versions   which versions of torch, NCCL and EFA belong together (versions.yaml)
site_files the models of the site's settings files
inventory  the versions that are installed; software: `node versions` and `node image`
image      recipes of training images
slurm_conf prints and lints the lines of slurm.conf for hooks and elastic jobs, and of topology.conf
hyperpod   what SageMaker HyperPod says about a cluster on each of its nodes
instance   the hardware that a machine of this type should have
errors     the errors of this package
"""

from lifecycle.errors import LifecycleError
from lifecycle.health.finding import Finding, Status
from lifecycle.health.preflight import preflight
from lifecycle.health.watch import HealthWatch
from lifecycle.instance import Expected, expected, instance_type

__all__ = ["Expected", "Finding", "HealthWatch", "LifecycleError", "Status", "expected", "instance_type", "preflight"]
