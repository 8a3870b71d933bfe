"""Draws the training time that is left (ETTR) by seconds between saves: the formulas, and jobs with random failures.

`ckpt.cadence` has the formulas. `simulation/save_intervals.py` plays jobs with memory and a shared directory,
from failure to failure.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from plot import line_chart

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from ckpt.cadence import interval_s, training_ratio  # noqa: E402
from simulation.save_intervals import levels, simulated  # noqa: E402

EVERY_S = (20.0, 40.0, 80.0, 160.0, 320.0, 640.0)
SHARED_S = 900.0  # between two saves to the shared directory


def main() -> int:
    parser = argparse.ArgumentParser(prog="cadence", description=__doc__)
    parser.add_argument("--gpus", type=int, nargs="+", default=[1024, 4096, 16_384])
    parser.add_argument("--stall", type=float, default=1.0, help="seconds for which training waits in each save")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw both, two lines for each number of GPUs")
    given = parser.parse_args()
    lines: dict[str, list[tuple[float, float]]] = {}
    for gpus in given.gpus:
        of = levels(gpus, stall_s=given.stall)
        computed = [(each, training_ratio(of, [each, SHARED_S])) for each in EVERY_S]
        played = [(each, simulated(of, [each, SHARED_S], seed=gpus)) for each in EVERY_S]
        lines |= {f"{gpus} formula": computed, f"{gpus} played": played}
        print(f"{gpus} GPUs: best every {interval_s(of[0]):.0f} s")
        for (each, ratio), (_, seen) in zip(computed, played, strict=True):
            print(f"  every {each:.0f} s: formula {ratio:.4f}, played {seen:.4f}")
    if given.plot is not None:
        title = f"Llama 3's rate of failures, a save costs {given.stall:g} s"
        line_chart(given.plot, lines, title=title, x_label="seconds between saves", y_label="ETTR", is_log_x=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
