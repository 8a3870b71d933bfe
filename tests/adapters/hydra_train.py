"""Twenty steps; a worker of the first attempt kills itself after it has saved."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from holdfast import Checkpointer

state = {"loss": float(sys.argv[1])}
with Checkpointer.from_env() as ckpt:
    step = ckpt.load(state) or 0
    while step < 20:
        step += 1
        state["loss"] /= 2
        if ckpt.should_save(step):
            ckpt.save(step, state)
        if step == 9 and os.environ["HOLDFAST_ATTEMPT"] == "0":
            assert ckpt.newest_step == 8
            os.kill(os.getpid(), signal.SIGKILL)
        if ckpt.should_stop(step):
            break
Path(sys.argv[2]).write_text(repr(state["loss"]))
