"""Makes a bare node fit for training and says whether it still is.

health/   checks, one subject a module: what was measured, what was expected, what to do
  finding   the result of a check, with the codes that Nagios plugins use
  host      memory file system, file descriptors

Today this holds what the launcher's runner asks before a node joins a job (`preflight`). Provisioning, GPU and fabric
checks and healing are not here yet: see the README's table.
"""

from lifecycle.health.finding import Finding, Status
from lifecycle.health.host import preflight

__all__ = ["Finding", "Status", "preflight"]
