"""Makes a bare node fit for training and says whether it still is.

cli       `holdfast node`: the group that the verbs below join
health/   checks, one subject a module: what was measured, what was expected, what to do
instance  what a machine of this type should have
files     what root publishes for all to read
errors
"""

from lifecycle.errors import LifecycleError
from lifecycle.health.finding import Finding, Status
from lifecycle.health.preflight import preflight

__all__ = ["Finding", "LifecycleError", "Status", "preflight"]
