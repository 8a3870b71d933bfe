"""What the adapters share: a state behind two functions, and the end of a script at a stop."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NoReturn

from ckpt import Checkpointer

log = logging.getLogger("holdfast.adapters")


class Values:
    """An object for a Checkpointer's state whose values two functions give and take."""

    def __init__(self, get: Callable[[], dict[str, Any]], put: Callable[[dict[str, Any]], None]) -> None:
        self.state_dict = get
        self.load_state_dict = put


def end_script(ckpt: Checkpointer, step: int) -> NoReturn:
    """Ends this process at a step at which all ranks stop, once its save is complete.

    What a script does after its training (a test, the export of the model) belongs to the last step only.

    Raises:
        SystemExit: always, with code 0.
    """
    ckpt.close()
    log.warning("the job stops at step %d, before its last step: this script ends here and continues from it", step)
    raise SystemExit(0)
