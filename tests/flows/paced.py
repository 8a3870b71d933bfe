"""The elastic example with a rest after each step: while nodes join it takes fewer steps, and less CPU time."""

from __future__ import annotations

import runpy
import time
from pathlib import Path

from holdfast import Checkpointer

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "elastic_ddp" / "train.py"
PACE_S = 0.03


def main() -> None:
    should_stop = Checkpointer.should_stop

    def paced(ckpt: Checkpointer, step: int) -> bool:
        time.sleep(PACE_S)
        return should_stop(ckpt, step)

    Checkpointer.should_stop = paced  # type: ignore[method-assign]
    runpy.run_path(str(SCRIPT), run_name="__main__")


if __name__ == "__main__":
    main()
