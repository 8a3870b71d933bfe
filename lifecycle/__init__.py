"""Makes a bare node fit for training and says whether it still is.

cli       `holdfast node`: the group that the verbs below join
health/   checks, one subject a module: what was measured, what was expected, what to do
heal/     nodes that were drained: rebooted or replaced, checked, returned
provision/ steps that make a bare node fit; on_create.sh begins with it
versions  which torch, NCCL and EFA belong together (versions.yaml); inventory: what is here; software: its verbs
image     recipes of training images
slurm_conf the lines of slurm.conf for the hooks and for elastic jobs, printed and linted
instance  what a machine of this type should have
blocks    tables for people
files     what root publishes for all to read
settings/  reads and validates what people write: the site's settings, and the launcher's job files
errors
"""

from lifecycle.errors import LifecycleError
from lifecycle.health.finding import Finding, Status
from lifecycle.health.preflight import preflight
from lifecycle.instance import Expected, expected, instance_type

__all__ = ["Expected", "Finding", "LifecycleError", "Status", "expected", "instance_type", "preflight"]
