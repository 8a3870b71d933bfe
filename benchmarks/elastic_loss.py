"""The loss of a job that is resized in mid-training beside that of a job of one node: two real runs.

    python benchmarks/elastic_loss.py [--sizes 2 4 2 3] [--between STEPS] [--plot FILE.svg] [--json]

Both run on the local cluster and see the same samples at each step. What differs is the order in which gradients are
summed up, so their losses are the same but for rounding.
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
    parser.add_argument("--sizes", type=int, nargs="+", default=[2, 4, 2, 3], help="nodes, one size after the other")
    parser.add_argument("--between", type=int, default=100, help="steps at each size, at least")
    parser.add_argument("--double", action="store_true", help="64-bit floats")
    parser.add_argument("--plot", type=Path, help="an SVG file to draw both curves to")
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
