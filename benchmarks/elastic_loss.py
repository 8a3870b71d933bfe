"""Compares the loss of a job that is resized during training with that of a job on one node, in two real runs.

    python benchmarks/elastic_loss.py [--sizes 2 4 2 3] [--between STEPS] [--plot FILE.svg] [--json]

Both jobs run on the local cluster and see the same samples at each step. Only the order in which gradients are summed
differs, so the losses differ only by rounding.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import median

from plot import line_chart

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "flows"))

from elastic_run import fixed_run, resized_run, surviving_history  # noqa: E402  the flow tests' own job


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2, 4, 2, 3], help="numbers of nodes, in turn")
    parser.add_argument("--between", type=int, default=100, help="least number of steps at each size")
    parser.add_argument("--double", action="store_true", help="train with 64-bit floats")
    parser.add_argument("--plot", type=Path, help="SVG file for both curves")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        resized = resized_run(Path(folder), given.sizes, between=given.between, double=given.double)
        samples, losses, ranks = surviving_history(resized.job_dir)
        fixed = fixed_run(Path(folder), len(samples), double=given.double)
        fixed_samples, fixed_losses, _ = surviving_history(fixed.job_dir)
    steps = sorted(losses)
    apart = [abs(losses[step] / fixed_losses[step] - 1) for step in steps]
    figures = {
        "steps": len(steps),
        "steps with other samples": sum(samples[step] != fixed_samples[step] for step in steps),
        "largest relative difference of the loss": max(apart),
        "median relative difference of the loss": median(apart),
        "first step at each size": [step for step in steps if ranks[step] != ranks.get(step - 1)],
    }
    print(json.dumps(figures) if given.json else "\n".join(f"{name}: {value}" for name, value in figures.items()))
    if given.plot:
        sizes = " -> ".join(map(str, given.sizes))
        lines = {
            "1 node": [(step, fixed_losses[step]) for step in steps],
            sizes: [(step, losses[step]) for step in steps],
            "difference": [(step, losses[step] - fixed_losses[step]) for step in steps],
        }
        line_chart(given.plot, lines, title=f"Loss on {sizes} nodes and on one", x_label="step", y_label="loss")
    return 0


if __name__ == "__main__":
    sys.exit(main())
