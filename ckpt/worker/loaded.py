"""The modules that a script has loaded by its second step boundary, for the launcher, which may load them in advance.

By then the script has trained a step, whether it asks for a stop before or after it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

BOUNDARY = 2


def record_modules(path: Path) -> None:
    """Writes the modules' names and the files that they were loaded from, in the order in which their imports began."""
    found = {}
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__dict__", {}).get("__spec__")
        if spec is not None and getattr(spec, "name", None) == name:  # not an alias
            found[name] = str(spec.origin or "")
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(found))
    draft.replace(path)
